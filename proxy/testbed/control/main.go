// Control is the test tailnet's "internet": a control server, a relay (DERP), a STUN server and, for certificates, the
// DNS server that an ACME server asks. Tests steer it over an HTTP interface on a Unix socket.
//
// tailscale.com/tstest/integration/testcontrol was looked at first. It cannot delete a node, give a node another
// address, take more than one auth key, tag by key, or send less than the whole map, and its request multiplexer behind
// the Noise handshake is private, so none of that can be wrapped around it. The protocol's layers (Noise, types, relay,
// STUN) are Tailscale's own packages; what stands here is the state and the answers.
package main

import (
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
)

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	var (
		v4      = flag.String("v4", "198.18.0.1", "IPv4 address to serve on")
		v6      = flag.String("v6", "2001:db8:18::1", "IPv6 address to serve on")
		domain  = flag.String("domain", "tailnet.ts.net", "MagicDNS domain")
		dir     = flag.String("dir", ".", "where ca.pem, cert.pem and key.pem are written")
		socket  = flag.String("admin", "admin.sock", "Unix socket of the interface for tests")
		dnsPort = flag.String("dns-port", "53", "port of the DNS server that knows the ACME challenges")
	)
	flag.Parse()

	identity, err := newIdentity(*dir, *v4, *v6)
	if err != nil {
		log.Fatalf("make the certificates in %s: %v", *dir, err)
	}
	derpMap, err := serveRelay(identity, *v4, *v6)
	if err != nil {
		log.Fatalf("serve DERP and STUN: %v", err)
	}
	tailnet := newTailnet(*domain, "https://"+*v4, derpMap)
	api := newAPI(tailnet)
	front := &front{handler: api.handler(newNoise(tailnet)), identity: identity, addresses: []string{*v4, *v6}}
	if err := front.resume(); err != nil {
		log.Fatalf("serve the control protocol: %v", err)
	}
	if err := serveChallenges(tailnet, []string{*v4, *v6}, *dnsPort); err != nil {
		log.Fatalf("serve DNS: %v", err)
	}

	// Last: whoever can connect finds everything served. Bound under another name, so that the name appears when it
	// listens.
	fresh := filepath.Join(*dir, "admin.new")
	admin, err := net.Listen("unix", fresh)
	if err != nil {
		log.Fatalf("listen on the admin socket: %v", err)
	}
	if err := os.Rename(fresh, *socket); err != nil {
		log.Fatalf("name the admin socket: %v", err)
	}
	log.Fatal(http.Serve(admin, newAdmin(tailnet, front, api)))
}
