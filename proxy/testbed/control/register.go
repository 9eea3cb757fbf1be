package main

import (
	"crypto/rand"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"slices"
	"time"

	"tailscale.com/tailcfg"
)

// login is a node that waits for its user.
type login struct {
	done chan struct{}
	user string // who has logged in, once done is closed
}

func (t *tailnet) serveRegister(w http.ResponseWriter, r *http.Request) {
	var request tailcfg.RegisterRequest
	if err := readJSON(r, &request); err != nil || request.NodeKey.IsZero() {
		http.Error(w, fmt.Sprintf("bad request: %v", err), http.StatusBadRequest)
		return
	}
	var visitor string
	if request.Followup != "" {
		address, err := url.Parse(request.Followup)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		t.mu.Lock()
		pending := t.logins[address.Path]
		t.mu.Unlock()
		if pending != nil {
			select {
			case <-pending.done:
				visitor = pending.user
			case <-r.Context().Done():
				return
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	writeJSON(w, t.register(&request, r, visitor))
}

// register decides who gets in. With mu held.
func (t *tailnet) register(request *tailcfg.RegisterRequest, r *http.Request, visitor string) tailcfg.RegisterResponse {
	machine := machineOf(r)
	n := t.byKey(request.NodeKey)
	if n != nil && n.machine != machine {
		return tailcfg.RegisterResponse{Error: "node key belongs to another machine"}
	}
	known := n != nil
	if !known {
		// A new node key of a machine that is known: its node is kept, with name and addresses.
		for _, other := range t.nodes {
			if other.machine == machine {
				n = other
			}
		}
	}
	if !request.Expiry.IsZero() && request.Expiry.Before(time.Now()) {
		if known {
			t.logOut(n)
		}
		return tailcfg.RegisterResponse{MachineAuthorized: true}
	}
	if known && !n.expired() && visitor == "" {
		t.describe(n, request)
		return t.welcome(n)
	}

	var used *authKey
	if request.Auth != nil && request.Auth.AuthKey != "" {
		used = t.keys[request.Auth.AuthKey]
		switch {
		case used == nil:
			return tailcfg.RegisterResponse{Error: "invalid key: API key does not exist"}
		case !used.good():
			return tailcfg.RegisterResponse{Error: fmt.Sprintf("invalid key: API key %s not valid", used.ID)}
		}
	} else if known && n.expired() {
		// The client answers by asking again with a new node key.
		return tailcfg.RegisterResponse{NodeKeyExpired: true}
	} else if visitor == "" {
		path := "/a/" + rand.Text()
		t.logins[path] = &login{done: make(chan struct{})}
		return tailcfg.RegisterResponse{AuthURL: t.url + path}
	}

	if n == nil {
		n = t.add(request.Hostinfo.Hostname)
		n.machine = machine
		log.Printf("node %d (%s) is new: %v", n.id, n.name, n.addresses)
	}
	n.key, n.expiry, n.tags, n.ephemeral = request.NodeKey, time.Time{}, nil, request.Ephemeral
	if used != nil {
		used.used = true
		n.tags, n.ephemeral = slices.Clone(used.Tags), used.Ephemeral || request.Ephemeral
		visitor = used.User
	}
	n.user = taggedDevices
	if len(n.tags) == 0 {
		n.user = t.user(visitor)
	}
	t.describe(n, request)
	t.touch(n)
	return t.welcome(n)
}

// describe takes over what the node says of itself.
func (t *tailnet) describe(n *node, request *tailcfg.RegisterRequest) {
	n.cap = request.Version
	if request.Hostinfo != nil {
		t.setHostinfo(n, request.Hostinfo)
	}
}

func (t *tailnet) welcome(n *node) tailcfg.RegisterResponse {
	profile := t.profile(n)
	return tailcfg.RegisterResponse{
		MachineAuthorized: true,
		User:              tailcfg.User{ID: profile.ID, DisplayName: profile.DisplayName},
		Login:             tailcfg.Login{ID: tailcfg.LoginID(profile.ID), LoginName: profile.LoginName, DisplayName: profile.DisplayName},
	}
}

// profile is the user that the node is told it belongs to. A tagged one is its own: clients keep the name in their state.
func (t *tailnet) profile(n *node) tailcfg.UserProfile {
	if len(n.tags) > 0 {
		name := t.fqdn(n.name)
		return tailcfg.UserProfile{ID: ownProfile + tailcfg.UserID(n.id), LoginName: name, DisplayName: name}
	}
	for _, user := range t.users {
		if user.ID == n.user {
			return user
		}
	}
	return tailcfg.UserProfile{ID: n.user}
}

// logOut ends an ephemeral node and expires any other.
func (t *tailnet) logOut(n *node) {
	if n.ephemeral {
		t.remove(n)
		return
	}
	n.expiry = time.Now().Add(-time.Minute)
	t.reassign()
	t.touch(n)
}
