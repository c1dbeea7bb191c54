"""Whether this device, its bundle, its network and its cloud fit together: one module per probe."""
