"""What can be said of lmdeploy's source without importing it."""
