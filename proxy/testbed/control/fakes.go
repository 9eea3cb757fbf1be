package main

import (
	"fmt"
	"net/netip"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// addFakes makes nodes that nobody runs.
func (t *tailnet) addFakes(count int, prefix string) []*node {
	t.mu.Lock()
	defer t.mu.Unlock()
	var fakes []*node
	for range count {
		fakes = append(fakes, t.addFake(prefix))
	}
	t.touch(fakes...)
	return fakes
}

func (t *tailnet) addFake(prefix string) *node {
	n := t.add(fmt.Sprintf("%s-%d", prefix, t.lastID+1))
	n.machine = key.NewMachine().Public()
	n.key = key.NewNode().Public()
	n.disco = key.NewDisco().Public()
	n.user = taggedDevices
	n.tags = []string{"tag:fake"}
	n.derp, n.cap, n.fake, n.online = 1, tailcfg.CurrentCapabilityVersion, true, true
	return n
}

func (t *tailnet) removeFakes() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, n := range t.nodes {
		if n.fake {
			delete(t.nodes, id)
		}
	}
	t.reassign()
	t.next()
}

// churn changes fake nodes that often, evenly over the time, each change one of: another endpoint, another address,
// another name, gone and another one there.
func (t *tailnet) churn(changes int, over time.Duration) (done int) {
	start := time.Now()
	for done < changes {
		time.Sleep(time.Until(start.Add(over * time.Duration(done) / time.Duration(changes))))
		t.mu.Lock()
		t.churnOnce(done)
		t.mu.Unlock()
		done++
	}
	return done
}

func (t *tailnet) churnOnce(number int) {
	var fakes []*node
	for _, n := range t.sorted() {
		if n.fake {
			fakes = append(fakes, n)
		}
	}
	if len(fakes) == 0 {
		t.touch(t.addFake("fake"))
		return
	}
	n := fakes[number%len(fakes)]
	switch number % 4 {
	case 0:
		port := uint16(1024 + number%60000)
		n.endpoints = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), port)}
	case 1:
		v4 := netip.AddrFrom4([4]byte{100, 127, byte(number >> 8), byte(number)})
		n.addresses = both(v4, n.addresses[1].Addr())
	case 2:
		n.name = t.freeName(fmt.Sprintf("churned-%d", number), n)
	case 3:
		t.remove(n)
		n = t.addFake("fake")
	}
	t.touch(n)
}
