package main

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// The virtio header of a packet on a TUN device.
const virtioHeader = 10

const (
	needsChecksum = 1
	gsoTCPv4      = 1
	gsoTCPv6      = 4
)

// link ties gVisor's stack to a TUN device. Super-packets pass whole in both directions, and sums are not checked.
type link struct {
	fd         int
	mtu        uint32
	dispatcher stack.NetworkDispatcher
}

func (l *link) MTU() uint32                               { return l.mtu }
func (l *link) SetMTU(mtu uint32)                         { l.mtu = mtu }
func (*link) MaxHeaderLength() uint16                     { return 0 }
func (*link) LinkAddress() tcpip.LinkAddress              { return "" }
func (*link) SetLinkAddress(tcpip.LinkAddress)            {}
func (*link) ARPHardwareType() header.ARPHardwareType     { return header.ARPHardwareNone }
func (*link) AddHeader(*stack.PacketBuffer)               {}
func (*link) ParseHeader(*stack.PacketBuffer) bool        { return true }
func (*link) Close()                                      {}
func (*link) SetOnCloseAction(func())                     {}
func (*link) Wait()                                       {}
func (l *link) IsAttached() bool                          { return l.dispatcher != nil }
func (*link) GSOMaxSize() uint32                          { return 1<<16 - 1 }
func (*link) SupportedGSO() stack.SupportedGSO            { return stack.HostGSOSupported }
func (l *link) Attach(dispatcher stack.NetworkDispatcher) { l.dispatcher = dispatcher }
func (*link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

// WritePackets hands packets to the kernel, each with one system call and without a copy.
func (l *link) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	written := 0
	for _, packet := range packets.AsSlice() {
		var virtio [virtioHeader]byte
		gso := packet.GSOOptions
		if gso.Type != stack.GSONone || gso.NeedsCsum {
			virtio[0] = needsChecksum
			binary.NativeEndian.PutUint16(virtio[6:], gso.L3HdrLen)
			binary.NativeEndian.PutUint16(virtio[8:], gso.CsumOffset)
		}
		if gso.Type != stack.GSONone && uint16(packet.Data().Size()) > gso.MSS {
			virtio[1] = gsoTCPv4
			if gso.Type == stack.GSOTCPv6 {
				virtio[1] = gsoTCPv6
			}
			binary.NativeEndian.PutUint16(virtio[2:], uint16(packet.HeaderSize()))
			binary.NativeEndian.PutUint16(virtio[4:], gso.MSS)
		}
		slices := append([][]byte{virtio[:]}, packet.AsSlices()...)
		if _, err := unix.Writev(l.fd, slices); err != nil {
			return written, &tcpip.ErrClosedForSend{}
		}
		written++
	}
	return written, nil
}

// read delivers what the kernel sends, until the device goes.
func (l *link) read() error {
	frame := make([]byte, virtioHeader+1<<16)
	for {
		length, err := unix.Read(l.fd, frame)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if length <= virtioHeader {
			continue
		}
		protocol := header.IPv4ProtocolNumber
		if frame[virtioHeader]>>4 == 6 {
			protocol = header.IPv6ProtocolNumber
		}
		packet := stack.NewPacketBuffer(stack.PacketBufferOptions{
			Payload: buffer.MakeWithData(frame[virtioHeader:length]),
		})
		packet.RXChecksumValidated = true
		l.dispatcher.DeliverNetworkPacket(protocol, packet)
		packet.DecRef()
	}
}
