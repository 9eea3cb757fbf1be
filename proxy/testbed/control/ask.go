package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"tailscale.com/tailcfg"
)

// ask sends a request to a node through its map stream and waits for the answer (what upstream calls c2n).
func (t *tailnet) ask(id tailcfg.NodeID, request *http.Request) (*http.Response, error) {
	var payload bytes.Buffer
	if err := request.Write(&payload); err != nil {
		return nil, err
	}
	token := rand.Text()
	reply := make(chan []byte, 1)
	t.mu.Lock()
	t.replies[token] = reply
	session := t.sessions[id]
	if session != nil {
		session.pings = append(session.pings, &tailcfg.PingRequest{
			URL:     t.url + "/c2n/" + token,
			Types:   "c2n",
			Payload: payload.Bytes(),
		})
		session.wakeUp()
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.replies, token)
	}()
	if session == nil {
		return nil, fmt.Errorf("node %d is not connected", id)
	}
	select {
	case body := <-reply:
		return http.ReadResponse(bufio.NewReader(bytes.NewReader(body)), request)
	case <-time.After(10 * time.Second):
		return nil, fmt.Errorf("node %d has not answered %s", id, request.URL)
	}
}

// serveReply takes a node's answer.
func (t *tailnet) serveReply(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, largest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t.mu.Lock()
	reply := t.replies[r.PathValue("token")]
	delete(t.replies, r.PathValue("token"))
	t.mu.Unlock()
	if reply == nil {
		http.Error(w, "nobody waits for this", http.StatusNotFound)
		return
	}
	reply <- body
	w.WriteHeader(http.StatusNoContent)
}

// askServices learns which services a node serves now. Its Hostinfo tells only that they have changed.
func (t *tailnet) askServices(id tailcfg.NodeID) {
	request, err := http.NewRequest(http.MethodGet, "/vip-services", nil)
	if err != nil {
		log.Print(err)
		return
	}
	request.Host = "node"
	response, err := t.ask(id, request)
	if err != nil {
		// A node that is not connected yet is asked when it is; see serveMap.
		log.Printf("services of node %d: %v", id, err)
		return
	}
	var answer tailcfg.C2NVIPServicesResponse
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		log.Printf("services of node %d: %v", id, err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[id]
	if n == nil {
		return
	}
	n.hosts = nil
	for _, service := range answer.VIPServices {
		if service.Active {
			n.hosts = append(n.hosts, string(service.Name))
		}
	}
	t.reassign()
	t.touch(n)
}
