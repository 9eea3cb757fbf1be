package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"tailscale.com/tailcfg"
)

// v1 are the paths of Headscale (0.26 and later) that an operator uses. Numbers are text, as protobuf's JSON has them.
func (a *api) v1() map[string]handle {
	return map[string]handle{
		"POST /api/v1/preauthkey":  a.makePreauthKey,
		"GET /api/v1/preauthkey":   a.listPreauthKeys,
		"GET /api/v1/node":         a.listNodes,
		"GET /api/v1/node/{id}":    a.getNode,
		"DELETE /api/v1/node/{id}": a.deleteNode,
		"GET /api/v1/user":         a.listUsers,
		"GET /api/v1/policy":       a.getV1Policy,
	}
}

func (a *api) makePreauthKey(_ http.ResponseWriter, r *http.Request) (any, error) {
	var request struct {
		User       string    `json:"user"`
		Reusable   bool      `json:"reusable"`
		Ephemeral  bool      `json:"ephemeral"`
		Expiration time.Time `json:"expiration"`
		Tags       []string  `json:"aclTags"`
	}
	if err := readJSON(r, &request); err != nil {
		return nil, err
	}
	for _, tag := range request.Tags {
		if !strings.HasPrefix(tag, "tag:") {
			return nil, refuse(http.StatusBadRequest, "invalid tag %q", tag)
		}
	}
	login := ""
	for _, user := range a.t.users {
		if request.User == fmt.Sprint(int64(user.ID)) {
			login = user.LoginName
		}
	}
	if login == "" && (request.User != "" || len(request.Tags) == 0) {
		return nil, refuse(http.StatusNotFound, "user not found")
	}
	made := a.t.newKey(authKey{
		Tags: request.Tags, Reusable: request.Reusable, Ephemeral: request.Ephemeral, Expires: request.Expiration,
		User: login, Preauthorized: true,
	})
	answer := made.v1()
	answer["key"] = made.secret
	return map[string]any{"preAuthKey": answer}, nil
}

func (k *authKey) v1() map[string]any {
	answer := map[string]any{
		"id": strings.Trim(k.ID, "kCNTRL"), "key": k.secret[:12] + "***", "reusable": k.Reusable, "ephemeral": k.Ephemeral,
		"used": k.used, "createdAt": k.created.UTC(), "aclTags": k.Tags,
	}
	if !k.Expires.IsZero() {
		answer["expiration"] = k.Expires.UTC()
	}
	return answer
}

func (a *api) listPreauthKeys(http.ResponseWriter, *http.Request) (any, error) {
	keys := []any{}
	for _, k := range a.t.sortedKeys() {
		keys = append(keys, k.v1())
	}
	return map[string]any{"preAuthKeys": keys}, nil
}

func (a *api) node(n *node) map[string]any {
	return map[string]any{
		"id": fmt.Sprint(int64(n.id)), "name": hostnameOf(n), "givenName": n.name, "ipAddresses": addressesOf(n),
		"tags": n.tags, "online": n.online, "createdAt": n.created.UTC(), "nodeKey": n.key.String(),
		"machineKey": n.machine.String(), "user": a.v1User(n.user),
	}
}

func (a *api) v1User(id tailcfg.UserID) map[string]any {
	return map[string]any{"id": fmt.Sprint(int64(id)), "name": a.t.loginName(id)}
}

func (a *api) listNodes(http.ResponseWriter, *http.Request) (any, error) {
	nodes := []any{}
	for _, n := range a.t.sorted() {
		nodes = append(nodes, a.node(n))
	}
	return map[string]any{"nodes": nodes}, nil
}

func (a *api) getNode(_ http.ResponseWriter, r *http.Request) (any, error) {
	n, err := a.find(r)
	if err != nil {
		return nil, absent()
	}
	return map[string]any{"node": a.node(n)}, nil
}

// absent is how Headscale says that there is no such node: with an error of its database's.
func absent() error { return refuse(http.StatusInternalServerError, "node not found") }

func (a *api) deleteNode(w http.ResponseWriter, r *http.Request) (any, error) {
	if _, err := a.deleteDevice(w, r); err != nil {
		return nil, absent()
	}
	return map[string]any{}, nil
}

func (a *api) listUsers(_ http.ResponseWriter, r *http.Request) (any, error) {
	users := []any{}
	for _, user := range a.t.users {
		if name := r.URL.Query().Get("name"); name == "" || name == user.LoginName {
			users = append(users, a.v1User(user.ID))
		}
	}
	return map[string]any{"users": users}, nil
}

func (a *api) getV1Policy(http.ResponseWriter, *http.Request) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return map[string]any{"policy": a.policy, "updatedAt": time.Now().UTC()}, nil
}
