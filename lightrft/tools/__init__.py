"""Programs beside training: `python -m lightrft.tools.<name> --help`."""
