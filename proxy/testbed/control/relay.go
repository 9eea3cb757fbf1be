package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"

	"tailscale.com/derp/derpserver"
	"tailscale.com/net/stunserver"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

const (
	derpPort = 3340
	stunPort = 3478
)

// serveRelay starts the relay and the STUN server on both addresses and tells how nodes find them.
func serveRelay(identity tls.Certificate, v4, v6 string) (*tailcfg.DERPMap, error) {
	relay := derpserver.New(key.NewNode(), func(format string, args ...any) { log.Printf("derp: "+format, args...) })
	// The relay takes over whole connections, which HTTP/2 does not allow.
	server := &http.Server{
		Handler:      derpserver.Handler(relay),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	config := &tls.Config{Certificates: []tls.Certificate{identity}}
	for _, address := range []string{v4, v6} {
		listener, err := tls.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(derpPort)), config)
		if err != nil {
			return nil, err
		}
		go server.Serve(listener)
		stun := stunserver.New(context.Background())
		if err := stun.Listen(net.JoinHostPort(address, fmt.Sprint(stunPort))); err != nil {
			return nil, err
		}
		go stun.Serve()
	}
	node := &tailcfg.DERPNode{
		Name:             "1a",
		RegionID:         1,
		HostName:         v4,
		IPv4:             v4,
		IPv6:             v6,
		STUNPort:         stunPort,
		DERPPort:         derpPort,
		InsecureForTests: true,
	}
	region := &tailcfg.DERPRegion{RegionID: 1, RegionCode: "test", Nodes: []*tailcfg.DERPNode{node}}
	return &tailcfg.DERPMap{Regions: map[int]*tailcfg.DERPRegion{1: region}, OmitDefaultRegions: true}, nil
}
