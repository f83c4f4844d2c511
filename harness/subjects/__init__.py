"""Who is on trial: stock lmdeploy, the candidate, a module path."""
