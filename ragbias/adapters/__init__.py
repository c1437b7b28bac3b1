"""What every framework integration shares: options, recent retrievals, reports, tools, servers and event loops."""
