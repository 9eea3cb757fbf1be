package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"tailscale.com/tailcfg"
)

// nodeInfo is a node as tests see it.
type nodeInfo struct {
	ID         tailcfg.NodeID       `json:"id"`
	StableID   tailcfg.StableNodeID `json:"stable_id"`
	Name       string               `json:"name"`
	Addresses  []netip.Addr         `json:"addresses"`
	Key        string               `json:"key"`
	Tags       []string             `json:"tags"`
	Online     bool                 `json:"online"`
	Expired    bool                 `json:"expired"`
	Fake       bool                 `json:"fake"`
	Advertised []netip.Prefix       `json:"advertised"`
	Served     []netip.Prefix       `json:"served"`
	Services   []string             `json:"services"`
	App        string               `json:"app"`
	Endpoints  []netip.AddrPort     `json:"endpoints"`
}

// nodeChange is what tests may change; what is absent stays.
type nodeChange struct {
	Name      *string            `json:"name"`
	Addresses []netip.Addr       `json:"addresses"`
	Tags      []string           `json:"tags"`
	Approved  []netip.Prefix     `json:"approved"`
	Extra     []netip.Prefix     `json:"extra"`
	Caps      tailcfg.NodeCapMap `json:"caps"`
	Expired   *bool              `json:"expired"`
	Jailed    *bool              `json:"jailed"`
}

func (t *tailnet) info(n *node) nodeInfo {
	info := nodeInfo{
		ID: n.id, StableID: n.stable, Name: t.fqdn(n.name), Key: n.key.String(), Tags: n.tags, Online: n.online,
		Expired: n.expired(), Fake: n.fake, Advertised: n.hostinfo.RoutableIPs, Served: t.served(n), Services: n.hosts,
		App: n.hostinfo.App, Endpoints: n.endpoints,
	}
	for _, address := range n.addresses {
		info.Addresses = append(info.Addresses, address.Addr())
	}
	return info
}

func (t *tailnet) change(n *node, change nodeChange) error {
	if change.Name != nil {
		n.name = t.freeName(*change.Name, n)
	}
	if change.Addresses != nil {
		if len(change.Addresses) != 2 || !change.Addresses[0].Is4() || !change.Addresses[1].Is6() {
			return fmt.Errorf("addresses: give one IPv4 and one IPv6 address, in this order")
		}
		n.addresses = both(change.Addresses[0], change.Addresses[1])
	}
	if change.Tags != nil {
		n.tags = change.Tags
	}
	if change.Approved != nil {
		n.approved = change.Approved
	}
	if change.Extra != nil {
		n.extra = change.Extra
	}
	if change.Caps != nil {
		n.caps = change.Caps
	}
	if change.Expired != nil {
		n.expiry = time.Time{}
		if *change.Expired {
			n.expiry = time.Now().Add(-time.Minute)
		}
	}
	if change.Jailed != nil {
		n.jailed = *change.Jailed
	}
	t.reassign()
	t.touch(n)
	return nil
}

// mask makes a node look like these addresses to one peer.
type mask struct {
	Node      tailcfg.NodeID `json:"node"`
	Peer      tailcfg.NodeID `json:"peer"`
	Addresses []netip.Addr   `json:"addresses"`
}

// newAdmin serves the interface for tests: JSON in and out, errors as text.
func newAdmin(t *tailnet, front *front, api *api) http.Handler {
	mux := http.NewServeMux()
	api.admin(mux)
	// locked runs a handler with the state held; what it returns is the answer.
	locked := func(pattern string, handle func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			t.mu.Lock()
			answer, err := handle(r)
			t.mu.Unlock()
			respond(w, answer, err)
		})
	}
	free := func(pattern string, handle func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer, err := handle(r)
			respond(w, answer, err)
		})
	}

	locked("GET /nodes", func(*http.Request) (any, error) {
		infos := []nodeInfo{}
		for _, n := range t.sorted() {
			infos = append(infos, t.info(n))
		}
		return infos, nil
	})
	locked("PATCH /nodes/{id}", func(r *http.Request) (any, error) {
		n, err := t.named(r)
		if err != nil {
			return nil, err
		}
		var change nodeChange
		if err := readJSON(r, &change); err != nil {
			return nil, err
		}
		if err := t.change(n, change); err != nil {
			return nil, err
		}
		return t.info(n), nil
	})
	locked("DELETE /nodes/{id}", func(r *http.Request) (any, error) {
		n, err := t.named(r)
		if err != nil {
			return nil, err
		}
		t.remove(n)
		return t.info(n), nil
	})
	locked("POST /keys", func(r *http.Request) (any, error) {
		made := authKey{User: owner}
		if err := readJSON(r, &made); err != nil {
			return nil, err
		}
		key := t.newKey(made)
		return map[string]string{"id": key.ID, "key": key.secret}, nil
	})
	locked("DELETE /keys/{id}", func(r *http.Request) (any, error) {
		for secret, k := range t.keys {
			if k.ID == r.PathValue("id") {
				delete(t.keys, secret)
				return nil, nil
			}
		}
		return nil, fmt.Errorf("no auth key has the id %q", r.PathValue("id"))
	})
	locked("PUT /settings", func(r *http.Request) (any, error) {
		if err := readJSON(r, &t.settings); err != nil {
			return nil, err
		}
		t.reassign()
		t.changed.settings = t.next()
		return t.settings, nil
	})
	locked("PUT /dns", func(r *http.Request) (any, error) {
		var fresh dnsSettings
		if err := readJSON(r, &fresh); err != nil {
			return nil, err
		}
		t.dns = fresh
		t.changed.settings = t.next()
		return nil, nil
	})
	locked("PUT /services/{name}", func(r *http.Request) (any, error) {
		var fresh service
		if err := readJSON(r, &fresh); err != nil {
			return nil, err
		}
		t.services[r.PathValue("name")] = fresh
		t.servicesChanged()
		return nil, nil
	})
	locked("DELETE /services/{name}", func(r *http.Request) (any, error) {
		delete(t.services, r.PathValue("name"))
		t.servicesChanged()
		return nil, nil
	})
	locked("PUT /masks", func(r *http.Request) (any, error) {
		var masks []mask
		if err := readJSON(r, &masks); err != nil {
			return nil, err
		}
		clear(t.masks)
		for _, m := range masks {
			t.masks[[2]tailcfg.NodeID{m.Node, m.Peer}] = m.Addresses
		}
		t.touch(t.sorted()...)
		return nil, nil
	})
	locked("PUT /filter", func(r *http.Request) (any, error) {
		var rules []tailcfg.FilterRule
		if err := readJSON(r, &rules); err != nil {
			return nil, err
		}
		t.filter = rules
		t.changed.filter = t.next()
		return nil, nil
	})
	locked("GET /challenges", func(*http.Request) (any, error) { return t.challenges, nil })
	locked("POST /logins", func(r *http.Request) (any, error) { return t.logIn(r) })
	free("DELETE /fakes", func(*http.Request) (any, error) { t.removeFakes(); return nil, nil })
	free("POST /fakes", func(r *http.Request) (any, error) {
		var request struct {
			Count  int    `json:"count"`
			Prefix string `json:"prefix"`
		}
		if err := readJSON(r, &request); err != nil {
			return nil, err
		}
		return len(t.addFakes(request.Count, request.Prefix)), nil
	})
	free("POST /churn", func(r *http.Request) (any, error) {
		var request struct {
			Changes int `json:"changes"`
			Millis  int `json:"millis"`
		}
		if err := readJSON(r, &request); err != nil {
			return nil, err
		}
		return t.churn(request.Changes, time.Duration(request.Millis)*time.Millisecond), nil
	})
	free("GET /acme-root", func(r *http.Request) (any, error) { return front.acmeRoot(r.URL.Query().Get("port")) })
	free("POST /pause", func(*http.Request) (any, error) { front.pause(); return nil, nil })
	free("POST /resume", func(*http.Request) (any, error) { return nil, front.resume() })
	return mux
}

func respond(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	writeJSON(w, answer)
}

// named finds the node that the path names by its number.
func (t *tailnet) named(r *http.Request) (*node, error) {
	number, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, err
	}
	if n := t.nodes[tailcfg.NodeID(number)]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("no node has the number %d", number)
}

// servicesChanged tells everyone: names of services are records of all.
func (t *tailnet) servicesChanged() {
	t.reassign()
	var hosts []*node
	for _, n := range t.nodes {
		if len(n.hosts) > 0 {
			hosts = append(hosts, n)
		}
	}
	t.touch(hosts...)
	t.changed.settings = t.next()
}

// logIn is the user's visit to the page that a node without a key was sent to.
func (t *tailnet) logIn(r *http.Request) (any, error) {
	var request struct {
		URL  string `json:"url"`
		User string `json:"user"`
	}
	if err := readJSON(r, &request); err != nil {
		return nil, err
	}
	pending := t.logins[strings.TrimPrefix(request.URL, t.url)]
	if pending == nil || pending.user != "" {
		return nil, fmt.Errorf("no node waits for a log-in at %q", request.URL)
	}
	pending.user = cmp.Or(request.User, owner)
	close(pending.done)
	return nil, nil
}
