package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"tailscale.com/net/tsaddr"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

const (
	// owner is the user that untagged nodes belong to unless their auth key names another.
	owner = "owner@example.com"
	// taggedDevices is the user that others see tagged nodes belong to.
	taggedDevices tailcfg.UserID = 1
	// ownProfile is added to a tagged node's number for the user that the node itself is told: its own name.
	ownProfile tailcfg.UserID = 1 << 40
)

// node is what the control server knows of one.
type node struct {
	id        tailcfg.NodeID
	stable    tailcfg.StableNodeID
	machine   key.MachinePublic
	key       key.NodePublic
	disco     key.DiscoPublic
	name      string // the first label of its name
	user      tailcfg.UserID
	tags      []string
	addresses []netip.Prefix
	hostinfo  *tailcfg.Hostinfo
	endpoints []netip.AddrPort
	cap       tailcfg.CapabilityVersion
	derp      int
	created   time.Time
	expiry    time.Time
	ephemeral bool
	fake      bool
	jailed    bool

	approved []netip.Prefix     // routes it may serve, if it advertises them
	extra    []netip.Prefix     // further addresses that peers send to it
	caps     tailcfg.NodeCapMap // beside those that every node has
	hosts    []string           // services that it says it serves now

	online   bool
	lastSeen time.Time
	version  uint64 // of the tailnet, when this node last changed
}

// tailnet is the whole state. Every change takes the next version; a session sends what is newer than it has sent.
type tailnet struct {
	domain  string // without dots around
	url     string
	derpMap *tailcfg.DERPMap

	mu       sync.Mutex
	version  uint64
	nodes    map[tailcfg.NodeID]*node
	lastID   tailcfg.NodeID
	lastKey  int
	sessions map[tailcfg.NodeID]*session
	keys     map[string]*authKey // by secret
	users    []tailcfg.UserProfile
	logins   map[string]*login // by path
	settings settings
	dns      dnsSettings
	services map[string]service
	// owners tells which of the nodes that may serve a prefix does.
	owners  map[netip.Prefix]tailcfg.NodeID
	masks   map[[2]tailcfg.NodeID][]netip.Addr // (node, peer) -> what the node looks like to the peer
	filter  []tailcfg.FilterRule
	changed struct{ settings, users, filter uint64 }
	// challenges are the TXT records that nodes had set, by lower-case name.
	challenges map[string][]string
	replies    map[string]chan []byte // outstanding requests to nodes, by token
}

// settings hold for all nodes.
type settings struct {
	// AutoApprove lets every node serve what it advertises.
	AutoApprove bool `json:"auto_approve"`
	// HTTPS offers certificates for nodes' names.
	HTTPS bool `json:"https"`
}

// dnsSettings are what nodes are told beside MagicDNS.
type dnsSettings struct {
	Records   []record            `json:"records"`
	Resolvers []string            `json:"resolvers"`
	Routes    map[string][]string `json:"routes"`
}

type record struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Value string `json:"value"`
}

// service is a Tailscale Service: a name and addresses of its own, served by nodes that say they do.
type service struct {
	Addresses   []netip.Addr      `json:"addresses"`
	Comment     string            `json:"comment"`
	Annotations map[string]string `json:"annotations"`
	Ports       []string          `json:"ports"`
	Tags        []string          `json:"tags"`
}

func newTailnet(domain, url string, derpMap *tailcfg.DERPMap) *tailnet {
	return &tailnet{
		domain:     strings.Trim(domain, "."),
		url:        url,
		derpMap:    derpMap,
		nodes:      map[tailcfg.NodeID]*node{},
		sessions:   map[tailcfg.NodeID]*session{},
		keys:       map[string]*authKey{},
		users:      []tailcfg.UserProfile{{ID: taggedDevices, LoginName: "tagged-devices", DisplayName: "Tagged Devices"}},
		logins:     map[string]*login{},
		settings:   settings{HTTPS: true},
		services:   map[string]service{},
		owners:     map[netip.Prefix]tailcfg.NodeID{},
		masks:      map[[2]tailcfg.NodeID][]netip.Addr{},
		filter:     tailcfg.FilterAllowAll,
		challenges: map[string][]string{},
		replies:    map[string]chan []byte{},
	}
}

// next takes a new version and wakes the sessions. The methods below that end so are called with mu held.
func (t *tailnet) next() uint64 {
	t.version++
	for _, session := range t.sessions {
		session.wakeUp()
	}
	return t.version
}

func (t *tailnet) touch(nodes ...*node) {
	version := t.next()
	for _, n := range nodes {
		n.version = version
	}
}

func (t *tailnet) sorted() []*node {
	nodes := make([]*node, 0, len(t.nodes))
	for _, n := range t.nodes {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	return nodes
}

func (t *tailnet) byKey(k key.NodePublic) *node {
	for _, n := range t.nodes {
		if n.key == k {
			return n
		}
	}
	return nil
}

// add makes a node with the next number, a free name and addresses of both families.
func (t *tailnet) add(hostname string) *node {
	t.lastID++
	id := t.lastID
	v4 := netip.AddrFrom4([4]byte{100, 64 + byte(id>>16), byte(id >> 8), byte(id)})
	n := &node{
		id:        id,
		stable:    tailcfg.StableNodeID(fmt.Sprintf("n%08xCNTRL", int64(id))),
		addresses: both(v4, tsaddr.Tailscale4To6(v4)),
		created:   time.Now(),
		hostinfo:  &tailcfg.Hostinfo{},
	}
	n.name = t.freeName(hostname, n)
	t.nodes[id] = n
	return n
}

// freeName is the host name as a label, with a number if another node has it.
func (t *tailnet) freeName(hostname string, self *node) string {
	base, _, _ := strings.Cut(strings.ToLower(hostname), ".")
	base = cmp.Or(base, "node")
	name := base
	for number := 1; ; number++ {
		taken := false
		for _, n := range t.nodes {
			taken = taken || n != self && n.name == name
		}
		if !taken {
			return name
		}
		name = fmt.Sprintf("%s-%d", base, number)
	}
}

// user finds or makes a user by the login name.
func (t *tailnet) user(login string) tailcfg.UserID {
	for _, user := range t.users {
		if user.LoginName == login {
			return user.ID
		}
	}
	id := tailcfg.UserID(len(t.users) + 1)
	t.users = append(t.users, tailcfg.UserProfile{ID: id, LoginName: login, DisplayName: login})
	t.changed.users = t.next()
	return id
}

func (t *tailnet) remove(n *node) {
	delete(t.nodes, n.id)
	for pair := range t.masks {
		if pair[0] == n.id || pair[1] == n.id {
			delete(t.masks, pair)
		}
	}
	t.reassign()
	t.next()
}

func (n *node) expired() bool {
	return !n.expiry.IsZero() && n.expiry.Before(time.Now())
}

func (t *tailnet) fqdn(label string) string { return label + "." + t.domain }

func both(v4, v6 netip.Addr) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(v4, 32), netip.PrefixFrom(v6, 128)}
}

// challenge tells the TXT records of a name.
func (t *tailnet) challenge(name string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.challenges[name])
}
