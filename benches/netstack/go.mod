module sluice.dev/benches/netstack

go 1.26

// The versions that tailscale.com v1.102.5 pins.
require (
	golang.org/x/sys v0.47.0
	gvisor.dev/gvisor v0.0.0-20260224225140-573d5e7127a8
)

require (
	github.com/google/btree v1.1.3 // indirect
	golang.org/x/exp v0.0.0-20231110203233-9a3e6036ecaa // indirect
	golang.org/x/time v0.15.0 // indirect
)
