package main

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"tailscale.com/tailcfg"
	"tailscale.com/types/dnstype"
)

// view is a node as another one is told. With mu held, as all of these.
func (t *tailnet) view(n, viewer *node) *tailcfg.Node {
	out := t.common(n)
	out.User = n.user
	out.IsJailed = n.jailed
	out.Addresses = t.seenAs(n, viewer)
	out.AllowedIPs = slices.Concat(out.Addresses, n.extra, t.served(n))
	for _, mask := range t.masks[[2]tailcfg.NodeID{viewer.id, n.id}] {
		if mask.Is4() {
			out.SelfNodeV4MasqAddrForThisPeer = &mask
		} else {
			out.SelfNodeV6MasqAddrForThisPeer = &mask
		}
	}
	out.CapMap = n.caps
	return out
}

// self is a node as it is told itself.
func (t *tailnet) self(n *node) *tailcfg.Node {
	out := t.common(n)
	out.User = t.profile(n).ID
	out.Addresses = slices.Clone(n.addresses)
	out.AllowedIPs = slices.Concat(out.Addresses, n.extra, t.served(n))
	out.CapMap = tailcfg.NodeCapMap{
		tailcfg.CapabilityFileSharing:                           nil,
		tailcfg.NodeAttrFunnel:                                  nil,
		tailcfg.CapabilityFunnelPorts + "?ports=443,8443,10000": nil,
		// No router is there to be asked.
		tailcfg.NodeAttrDisableUPnP: nil,
	}
	if t.settings.HTTPS {
		out.CapMap[tailcfg.CapabilityHTTPS] = nil
	}
	mappings := tailcfg.ServiceIPMappings{}
	for _, name := range n.hosts {
		if service, exists := t.services[name]; exists {
			mappings[tailcfg.ServiceName(name)] = service.Addresses
		}
	}
	if len(mappings) > 0 {
		// A map of strings and addresses always has a JSON form.
		text, _ := json.Marshal(mappings)
		out.CapMap[tailcfg.NodeAttrServiceHost] = []tailcfg.RawMessage{tailcfg.RawMessage(text)}
	}
	for name, values := range n.caps {
		out.CapMap[name] = values
	}
	return out
}

func (t *tailnet) common(n *node) *tailcfg.Node {
	online := n.online
	out := &tailcfg.Node{
		ID:                n.id,
		StableID:          n.stable,
		Name:              t.fqdn(n.name) + ".",
		Tags:              slices.Clone(n.tags),
		Key:               n.key,
		KeyExpiry:         n.expiry,
		Expired:           n.expired(),
		Machine:           n.machine,
		DiscoKey:          n.disco,
		Endpoints:         slices.Clone(n.endpoints),
		HomeDERP:          n.derp,
		Hostinfo:          n.hostinfo.View(),
		Created:           n.created,
		Cap:               n.cap,
		PrimaryRoutes:     slices.DeleteFunc(t.served(n), func(p netip.Prefix) bool { return p.Bits() == 0 }),
		MachineAuthorized: true,
		Online:            &online,
	}
	if !n.online && !n.lastSeen.IsZero() {
		seen := n.lastSeen
		out.LastSeen = &seen
	}
	return out
}

// seenAs is the node's addresses to the viewer: its own, but for those that it masquerades as.
func (t *tailnet) seenAs(n, viewer *node) []netip.Prefix {
	addresses := slices.Clone(n.addresses)
	for _, mask := range t.masks[[2]tailcfg.NodeID{n.id, viewer.id}] {
		for i, own := range addresses {
			if own.Addr().Is4() == mask.Is4() {
				addresses[i] = netip.PrefixFrom(mask, mask.BitLen())
			}
		}
	}
	return addresses
}

// dnsConfig is what the node is told: MagicDNS, the records, names of services, names it can have certificates for.
func (t *tailnet) dnsConfig(n *node) *tailcfg.DNSConfig {
	config := &tailcfg.DNSConfig{
		Proxied:     true,
		Domains:     []string{t.domain},
		Resolvers:   resolvers(t.dns.Resolvers),
		CertDomains: t.certDomains(n),
	}
	for suffix, addresses := range t.dns.Routes {
		if config.Routes == nil {
			config.Routes = map[string][]*dnstype.Resolver{}
		}
		config.Routes[suffix] = resolvers(addresses)
	}
	for _, r := range t.dns.Records {
		config.ExtraRecords = append(config.ExtraRecords, tailcfg.DNSRecord{Name: r.Name, Type: r.Type, Value: r.Value})
	}
	names := make([]string, 0, len(t.services))
	for name := range t.services {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, address := range t.services[name].Addresses {
			host := t.fqdn(strings.TrimPrefix(name, "svc:"))
			config.ExtraRecords = append(config.ExtraRecords, tailcfg.DNSRecord{Name: host, Value: address.String()})
		}
	}
	return config
}

// certDomains are the names that the node may have certificates for.
func (t *tailnet) certDomains(n *node) []string {
	if !t.settings.HTTPS {
		return nil
	}
	domains := []string{t.fqdn(n.name)}
	for _, name := range n.hosts {
		if _, exists := t.services[name]; exists {
			domains = append(domains, t.fqdn(strings.TrimPrefix(name, "svc:")))
		}
	}
	return domains
}

func resolvers(addresses []string) []*dnstype.Resolver {
	var list []*dnstype.Resolver
	for _, address := range addresses {
		list = append(list, &dnstype.Resolver{Addr: address})
	}
	return list
}
