//! The control server's HTTP API: keys, devices, Services.
