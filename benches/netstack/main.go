// Command netstack ends TCP as tailscaled does in user-space mode: connections end in gVisor's stack and are copied to
// connections of the kernel's. The stack's options and the copying are those of tailscale.com/wgengine/netstack
// v1.102.5, whose gVisor this is; tunnel, encryption and packet filter are left out.
//
//	netstack serve FD BACKEND   TCP that arrives on a TUN device (its descriptor), to BACKEND
//	netstack pump FD FD         packets from one TUN device to the other and back: what a tunnel's process does
//	                            in kernel mode
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const nic = 1

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "netstack:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: netstack serve FD BACKEND | netstack pump FD FD")
	}
	first, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "serve":
		return serve(first, args[2])
	case "pump":
		second, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		failed := make(chan error, 2)
		go func() { failed <- pump(first, second) }()
		go func() { failed <- pump(second, first) }()
		return <-failed
	}
	return fmt.Errorf("%s: neither serve nor pump", args[0])
}

// pump moves packets with their virtio headers, super-packets whole.
func pump(from, to int) error {
	frame := make([]byte, virtioHeader+1<<16)
	for {
		length, err := unix.Read(from, frame)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading a TUN device: %w", err)
		}
		// A packet that the kernel does not take is lost, as on any link.
		_, _ = unix.Write(to, frame[:length])
	}
}

func serve(fd int, backend string) error {
	// The order of options is netstack.Create's; so are their values.
	s := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{
			tcp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6,
		},
	})
	sack := tcpip.TCPSACKEnabled(true)
	recovery := tcpip.TCPRecovery(0)
	reno := tcpip.CongestionControlOption("reno")
	receive := tcpip.TCPReceiveBufferSizeRangeOption{
		Min: tcp.MinBufferSize, Default: tcp.DefaultSendBufferSize, Max: 8 << 20,
	}
	send := tcpip.TCPSendBufferSizeRangeOption{
		Min: tcp.MinBufferSize, Default: tcp.DefaultReceiveBufferSize, Max: 6 << 20,
	}
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &recovery, &reno, &receive, &send} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("%T: %v", option, err)
		}
	}
	l := &link{fd: fd, mtu: 1280}
	if err := s.CreateNIC(nic, l); err != nil {
		return fmt.Errorf("CreateNIC: %v", err)
	}
	// Tailscale registers an address for each connection; any address is taken here.
	s.SetPromiscuousMode(nic, true)
	s.SetSpoofing(nic, true)
	s.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	forwarder := tcp.NewForwarder(s, tcp.DefaultSendBufferSize, 1024, func(r *tcp.ForwarderRequest) {
		forward(r, backend)
	})
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, forwarder.HandlePacket)
	return l.read()
}

// forward is netstack.Impl's acceptTCP and forwardTCP. The forwarder runs it on a goroutine of its own.
func forward(r *tcp.ForwarderRequest, address string) {
	dialed, err := new(net.Dialer).DialContext(context.Background(), "tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, "netstack:", err)
		r.Complete(true)
		return
	}
	backend := dialed.(*net.TCPConn)
	defer backend.Close()
	var queue waiter.Queue
	endpoint, problem := r.CreateEndpoint(&queue)
	if problem != nil {
		r.Complete(true)
		return
	}
	r.Complete(false)
	endpoint.SocketOptions().SetKeepAlive(true)
	client := gonet.NewTCPConn(&queue, endpoint)
	defer client.Close()
	ended := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(backend, client)
		_, _ = backend.CloseWrite(), client.CloseRead()
		ended <- struct{}{}
	}()
	go func() {
		_, _ = io.Copy(client, backend)
		_, _ = client.CloseWrite(), backend.CloseRead()
		ended <- struct{}{}
	}()
	<-ended
	<-ended
}
