"""What decides: the bitgate command, plan, execute, judge, report."""
