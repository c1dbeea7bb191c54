"""One module per subcommand of `acespec`."""
