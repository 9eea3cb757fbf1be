package main

import (
	"maps"
	"net/netip"
	"slices"
)

// reassign chooses, for every prefix that nodes may serve, the one that does: it stays while it is connected, else the
// connected one with the lowest number takes over. Nodes that won or lost a prefix have changed.
func (t *tailnet) reassign() {
	candidates := map[netip.Prefix][]*node{}
	for _, n := range t.sorted() {
		for _, prefix := range t.servable(n) {
			candidates[prefix] = append(candidates[prefix], n)
		}
	}
	owners := map[netip.Prefix]*node{}
	for prefix, nodes := range candidates {
		better := func(a, b *node) int {
			return rank(b, t.owners[prefix] == b.id) - rank(a, t.owners[prefix] == a.id)
		}
		slices.SortStableFunc(nodes, better)
		owners[prefix] = nodes[0]
	}
	before := maps.Clone(t.owners)
	clear(t.owners)
	var touched []*node
	for prefix, n := range owners {
		t.owners[prefix] = n.id
		if before[prefix] != n.id {
			touched = append(touched, n)
		}
	}
	for prefix, id := range before {
		if loser := t.nodes[id]; loser != nil && t.owners[prefix] != id {
			touched = append(touched, loser)
		}
	}
	if len(touched) > 0 {
		t.touch(touched...)
	}
}

func rank(n *node, serves bool) int {
	rank := 0
	if n.online && !n.expired() {
		rank += 2
	}
	if serves {
		rank++
	}
	return rank
}

// servable lists what the node advertises and may serve: approved routes, and addresses of services that exist.
func (t *tailnet) servable(n *node) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, route := range n.hostinfo.RoutableIPs {
		if t.settings.AutoApprove || slices.Contains(n.approved, route) {
			prefixes = append(prefixes, route)
		}
	}
	for _, name := range n.hosts {
		for _, address := range t.services[name].Addresses {
			prefixes = append(prefixes, netip.PrefixFrom(address, address.BitLen()))
		}
	}
	return prefixes
}

// served lists the prefixes that the node serves, in order.
func (t *tailnet) served(n *node) []netip.Prefix {
	var prefixes []netip.Prefix
	for prefix, id := range t.owners {
		// Exit nodes are a choice of the client's: every one of them serves everything.
		if id == n.id && prefix.Bits() != 0 {
			prefixes = append(prefixes, prefix)
		}
	}
	for _, prefix := range t.servable(n) {
		if prefix.Bits() == 0 {
			prefixes = append(prefixes, prefix)
		}
	}
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		if order := a.Addr().Compare(b.Addr()); order != 0 {
			return order
		}
		return a.Bits() - b.Bits()
	})
	return prefixes
}
