package main

import (
	"encoding/binary"
	"encoding/json"
	"log"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/opt"
	"tailscale.com/util/zstdframe"
)

// keepAlive is how often a quiet stream says that it is there; clients give up after two minutes.
const keepAlive = 50 * time.Second

// session is a node's open stream of map responses.
type session struct {
	wake     chan struct{} // holds one: something is newer than what was sent
	replaced chan struct{} // closed when the node opens another stream
	pings    []*tailcfg.PingRequest
}

func (s *session) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// serveMap takes a node's news of itself, or streams the map to it.
func (t *tailnet) serveMap(w http.ResponseWriter, r *http.Request) {
	var request tailcfg.MapRequest
	if err := readJSON(r, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t.mu.Lock()
	n := t.byKey(request.NodeKey)
	if n == nil || n.machine != machineOf(r) {
		t.mu.Unlock()
		http.Error(w, "node not found", http.StatusNotFound)
		return
	}
	if !request.Stream {
		if !request.ReadOnly {
			t.update(n, &request)
		}
		var answer tailcfg.MapResponse
		if !request.OmitPeers {
			t.whole(n, &answer)
		}
		t.mu.Unlock()
		t.send(w, &request, &answer)
		return
	}
	current := &session{wake: make(chan struct{}, 1), replaced: make(chan struct{})}
	if older := t.sessions[n.id]; older != nil {
		close(older.replaced)
	}
	t.sessions[n.id] = current
	if !n.online {
		n.online = true
		t.reassign()
		t.touch(n)
	}
	if n.hostinfo.ServicesHash != "" {
		go t.askServices(n.id)
	}
	t.mu.Unlock()

	t.stream(w, r, &request, current, n.id)

	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions[n.id] != current {
		return
	}
	delete(t.sessions, n.id)
	n.online, n.lastSeen = false, time.Now()
	t.reassign()
	t.touch(n)
}

// sent is what a stream has told.
type sent struct {
	version uint64
	peers   map[tailcfg.NodeID]bool
	self    *tailcfg.Node
}

func (t *tailnet) stream(w http.ResponseWriter, r *http.Request, request *tailcfg.MapRequest, s *session, id tailcfg.NodeID) {
	told := sent{peers: map[tailcfg.NodeID]bool{}}
	quiet := time.NewTicker(keepAlive)
	defer quiet.Stop()
	for {
		var answer tailcfg.MapResponse
		t.mu.Lock()
		n := t.nodes[id]
		gone := n == nil || n.key != request.NodeKey
		something := false
		if gone {
			// Whoever was deleted is told that its key has expired, and stops.
			if something = n == nil && told.self != nil; something {
				answer.Node = told.self
				answer.Node.KeyExpiry = time.Now().Add(-time.Minute)
			}
		} else {
			something = t.news(n, s, &told, &answer)
		}
		t.mu.Unlock()
		if something && !t.send(w, request, &answer) || gone {
			return
		}
		select {
		case <-s.wake:
		case <-quiet.C:
			if !t.send(w, request, &tailcfg.MapResponse{KeepAlive: true}) {
				return
			}
		case <-s.replaced:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// news fills in what is newer than what was told; false if nothing is. With mu held.
func (t *tailnet) news(n *node, s *session, told *sent, answer *tailcfg.MapResponse) bool {
	if told.self == nil {
		t.whole(n, answer)
		told.self = answer.Node
		for _, peer := range answer.Peers {
			told.peers[peer.ID] = true
		}
		told.version = t.version
		return true
	}
	something := false
	since := told.version
	if n.version > since || t.changed.settings > since {
		answer.Node, something = t.self(n), true
		told.self = answer.Node
	}
	for _, peer := range t.sorted() {
		if peer != n && (peer.version > since || !told.peers[peer.id]) {
			answer.PeersChanged = append(answer.PeersChanged, t.view(peer, n))
			told.peers[peer.id] = true
		}
	}
	for id := range maps.Clone(told.peers) {
		if t.nodes[id] == nil {
			answer.PeersRemoved = append(answer.PeersRemoved, id)
			delete(told.peers, id)
		}
	}
	slices.Sort(answer.PeersRemoved)
	if t.changed.settings > since || n.version > since {
		answer.DNSConfig = t.dnsConfig(n)
	}
	if t.changed.users > since {
		answer.UserProfiles = slices.Clone(t.users)
	}
	if t.changed.filter > since {
		answer.PacketFilter, something = t.filter, true
	}
	if len(s.pings) > 0 {
		answer.PingRequest, s.pings = s.pings[0], s.pings[1:]
		something = true
		if len(s.pings) > 0 {
			s.wakeUp()
		}
	}
	told.version = t.version
	return something || len(answer.PeersChanged)+len(answer.PeersRemoved) > 0 ||
		answer.DNSConfig != nil || answer.UserProfiles != nil
}

// whole fills in everything.
func (t *tailnet) whole(n *node, answer *tailcfg.MapResponse) {
	answer.Node = t.self(n)
	answer.DERPMap = t.derpMap
	answer.Domain = "example.com"
	answer.CollectServices = opt.NewBool(true)
	answer.DNSConfig = t.dnsConfig(n)
	answer.PacketFilter = t.filter
	answer.UserProfiles = append(slices.Clone(t.users), t.profile(n))
	answer.Peers = []*tailcfg.Node{}
	for _, peer := range t.sorted() {
		if peer != n {
			answer.Peers = append(answer.Peers, t.view(peer, n))
		}
	}
}

// update takes a node's news of itself.
func (t *tailnet) update(n *node, request *tailcfg.MapRequest) {
	endpoints := slices.DeleteFunc(slices.Clone(request.Endpoints), func(e netip.AddrPort) bool {
		return e.Addr().IsLinkLocalUnicast()
	})
	if !slices.Equal(endpoints, n.endpoints) || request.DiscoKey != n.disco {
		n.endpoints, n.disco = endpoints, request.DiscoKey
		t.touch(n)
	}
	n.cap = request.Version
	if request.Hostinfo != nil {
		t.setHostinfo(n, request.Hostinfo)
	}
}

func (t *tailnet) setHostinfo(n *node, info *tailcfg.Hostinfo) {
	before := n.hostinfo
	n.hostinfo = info
	if info.Hostname != before.Hostname && info.Hostname != "" {
		n.name = t.freeName(info.Hostname, n)
	}
	if info.NetInfo != nil && info.NetInfo.PreferredDERP != 0 {
		n.derp = info.NetInfo.PreferredDERP
	}
	if !info.Equal(before) {
		t.reassign()
		t.touch(n)
	}
	if info.ServicesHash != before.ServicesHash {
		go t.askServices(n.id)
	}
}

// send writes one framed message; false if the node is gone.
func (t *tailnet) send(w http.ResponseWriter, request *tailcfg.MapRequest, answer *tailcfg.MapResponse) bool {
	body, err := json.Marshal(answer)
	if err != nil {
		log.Printf("map response: %v", err)
		return false
	}
	if request.Compress == "zstd" {
		body = zstdframe.AppendEncode(nil, body, zstdframe.FastestCompression)
	}
	message := append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	if _, err := w.Write(message); err != nil {
		return false
	}
	if flusher, can := w.(http.Flusher); can {
		flusher.Flush()
	}
	return true
}
