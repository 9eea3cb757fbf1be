package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"tailscale.com/net/tsaddr"
)

// keyLifetime is how long an auth key lets nodes in unless the request says otherwise.
const keyLifetime = 90 * 24 * time.Hour

// capabilities are the API's words for what an auth key gives.
type capabilities struct {
	Devices struct {
		Create struct {
			Reusable      bool     `json:"reusable"`
			Ephemeral     bool     `json:"ephemeral"`
			Preauthorized bool     `json:"preauthorized"`
			Tags          []string `json:"tags"`
		} `json:"create"`
	} `json:"devices"`
}

// keyInfo is an auth key in the API; the secret only just after it was made.
type keyInfo struct {
	ID           string       `json:"id"`
	Type         string       `json:"keyType"`
	Key          string       `json:"key,omitempty"`
	Description  string       `json:"description,omitempty"`
	Created      time.Time    `json:"created"`
	Expires      time.Time    `json:"expires"`
	Invalid      bool         `json:"invalid,omitempty"`
	Capabilities capabilities `json:"capabilities"`
}

// vipService is a Tailscale Service in the API.
type vipService struct {
	Name        string            `json:"name"`
	Addresses   []netip.Addr      `json:"addrs"`
	Comment     string            `json:"comment,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Ports       []string          `json:"ports"`
	Tags        []string          `json:"tags,omitempty"`
}

func (a *api) v2() map[string]handle {
	const ours = "/api/v2/tailnet/-/"
	return map[string]handle{
		"POST " + ours + "keys":                  a.makeKey,
		"GET " + ours + "keys":                   a.listKeys,
		"GET " + ours + "devices":                a.listDevices,
		"GET /api/v2/device/{id}":                a.getDevice,
		"DELETE /api/v2/device/{id}":             a.deleteDevice,
		"GET " + ours + "vip-services":           a.listServices,
		"GET " + ours + "vip-services/{name}":    a.getService,
		"PUT " + ours + "vip-services/{name}":    a.putService,
		"DELETE " + ours + "vip-services/{name}": a.deleteService,
		"GET " + ours + "acl":                    a.getPolicy,
	}
}

func (a *api) makeKey(_ http.ResponseWriter, r *http.Request) (any, error) {
	var request struct {
		Capabilities  capabilities `json:"capabilities"`
		ExpirySeconds int64        `json:"expirySeconds"`
		Description   string       `json:"description"`
	}
	if err := readJSON(r, &request); err != nil {
		return nil, err
	}
	create := request.Capabilities.Devices.Create
	wrong := func(tag string) bool { return !strings.HasPrefix(tag, "tag:") || len(tag) < 5 }
	if len(create.Tags) == 0 || slices.ContainsFunc(create.Tags, wrong) {
		return nil, refuse(http.StatusBadRequest, "requested tags %v are invalid or not permitted", create.Tags)
	}
	lifetime := keyLifetime
	if request.ExpirySeconds > 0 {
		lifetime = time.Duration(request.ExpirySeconds) * time.Second
	}
	made := a.t.newKey(authKey{
		Tags: create.Tags, Reusable: create.Reusable, Ephemeral: create.Ephemeral, Expires: time.Now().Add(lifetime),
		Preauthorized: create.Preauthorized, Description: request.Description,
	})
	info := made.info()
	info.Key = made.secret
	return info, nil
}

func (k *authKey) info() keyInfo {
	info := keyInfo{
		ID: k.ID, Type: "auth", Description: k.Description, Created: k.created, Expires: k.Expires, Invalid: !k.good(),
	}
	create := &info.Capabilities.Devices.Create
	create.Reusable, create.Ephemeral, create.Preauthorized, create.Tags = k.Reusable, k.Ephemeral, k.Preauthorized, k.Tags
	return info
}

func (a *api) listKeys(http.ResponseWriter, *http.Request) (any, error) {
	infos := []keyInfo{}
	for _, k := range a.t.sortedKeys() {
		infos = append(infos, k.info())
	}
	return map[string]any{"keys": infos}, nil
}

func (a *api) device(n *node) map[string]any {
	device := map[string]any{
		"id": fmt.Sprint(int64(n.id)), "nodeId": n.stable, "name": a.t.fqdn(n.name), "hostname": hostnameOf(n),
		"addresses": addressesOf(n), "tags": n.tags, "authorized": true, "user": a.t.loginName(n.user),
		"connectedToControl": n.online, "created": n.created.UTC(), "expires": n.expiry.UTC(), "isEphemeral": n.ephemeral,
		"keyExpiryDisabled": len(n.tags) > 0, "nodeKey": n.key.String(), "machineKey": n.machine.String(),
		"os": n.hostinfo.OS, "clientVersion": n.hostinfo.IPNVersion, "updateAvailable": false, "isExternal": false,
	}
	if !n.online {
		device["lastSeen"] = n.lastSeen.UTC()
	}
	return device
}

// hostnameOf is what the node calls itself; nodes that nobody runs say nothing.
func hostnameOf(n *node) string { return cmp.Or(n.hostinfo.Hostname, n.name) }

func addressesOf(n *node) []netip.Addr {
	var addresses []netip.Addr
	for _, prefix := range n.addresses {
		addresses = append(addresses, prefix.Addr())
	}
	return addresses
}

func (a *api) listDevices(http.ResponseWriter, *http.Request) (any, error) {
	devices := []any{}
	for _, n := range a.t.sorted() {
		devices = append(devices, a.device(n))
	}
	return map[string]any{"devices": devices}, nil
}

// find takes either of a device's identifiers.
func (a *api) find(r *http.Request) (*node, error) {
	id := r.PathValue("id")
	for _, n := range a.t.nodes {
		if id == string(n.stable) || id == fmt.Sprint(int64(n.id)) {
			return n, nil
		}
	}
	return nil, refuse(http.StatusNotFound, "no device found for %s", id)
}

func (a *api) getDevice(_ http.ResponseWriter, r *http.Request) (any, error) {
	n, err := a.find(r)
	if err != nil {
		return nil, err
	}
	return a.device(n), nil
}

func (a *api) deleteDevice(_ http.ResponseWriter, r *http.Request) (any, error) {
	n, err := a.find(r)
	if err != nil {
		return nil, err
	}
	a.t.remove(n)
	return nil, nil
}

func (a *api) service(name string) (vipService, bool) {
	s, exists := a.t.services[name]
	return vipService{
		Name: name, Addresses: s.Addresses, Comment: s.Comment, Annotations: s.Annotations, Ports: s.Ports, Tags: s.Tags,
	}, exists
}

// version is a Service's ETag: anything else has another.
func (s vipService) version() string {
	// Strings and addresses always have a JSON form.
	text, _ := json.Marshal(s)
	sum := sha256.Sum256(text)
	return `"` + hex.EncodeToString(sum[:8]) + `"`
}

func (a *api) listServices(http.ResponseWriter, *http.Request) (any, error) {
	services := []vipService{}
	for _, name := range slices.Sorted(maps.Keys(a.t.services)) {
		service, _ := a.service(name)
		services = append(services, service)
	}
	return map[string]any{"vipServices": services}, nil
}

func (a *api) getService(w http.ResponseWriter, r *http.Request) (any, error) {
	found, err := a.named(r)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.etags {
		w.Header().Set("ETag", found.version())
	}
	return found, nil
}

// named finds the Service and checks what the client says that it has read.
func (a *api) named(r *http.Request) (vipService, error) {
	found, exists := a.service(r.PathValue("name"))
	if condition := r.Header.Get("If-Match"); condition != "" && (!exists || condition != found.version()) {
		return found, refuse(http.StatusPreconditionFailed, "the Service is not the one that was read")
	}
	if !exists {
		return found, refuse(http.StatusNotFound, "no Service is named %s", r.PathValue("name"))
	}
	return found, nil
}

func (a *api) putService(_ http.ResponseWriter, r *http.Request) (any, error) {
	name := r.PathValue("name")
	found, err := a.named(r)
	if refused, ok := err.(refusal); ok && refused.status != http.StatusNotFound {
		return nil, err
	}
	var wanted vipService
	if err := readJSON(r, &wanted); err != nil {
		return nil, err
	}
	if wanted.Name != name || !strings.HasPrefix(name, "svc:") || len(wanted.Ports) == 0 {
		return nil, refuse(http.StatusBadRequest, "a Service has the name of the path, svc: before it, and ports")
	}
	if len(wanted.Addresses) == 0 {
		wanted.Addresses = found.Addresses
	}
	if len(wanted.Addresses) == 0 {
		a.mu.Lock()
		a.lastService++
		v4 := netip.AddrFrom4([4]byte{100, 101, byte(a.lastService >> 8), byte(a.lastService)})
		a.mu.Unlock()
		wanted.Addresses = []netip.Addr{v4, tsaddr.Tailscale4To6(v4)}
	}
	a.t.services[name] = service{
		Addresses: wanted.Addresses, Comment: wanted.Comment, Annotations: wanted.Annotations, Ports: wanted.Ports,
		Tags: wanted.Tags,
	}
	a.t.servicesChanged()
	return nil, nil
}

func (a *api) deleteService(_ http.ResponseWriter, r *http.Request) (any, error) {
	if _, err := a.named(r); err != nil {
		return nil, err
	}
	delete(a.t.services, r.PathValue("name"))
	a.t.servicesChanged()
	return nil, nil
}

// meddle is another client that changes the Service.
func (a *api) meddle(name string) {
	if s, exists := a.t.services[name]; exists {
		s.Comment = "changed by another client"
		a.t.services[name] = s
	}
}

func (a *api) getPolicy(w http.ResponseWriter, r *http.Request) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sum := sha256.Sum256([]byte(a.policy))
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:])+`"`)
	w.Header().Set("Content-Type", "application/hujson")
	return a.policy, nil
}
