package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"

	"golang.org/x/net/http2"
	"tailscale.com/control/controlhttp/controlhttpserver"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// largest is how much of a request's body is read.
const largest = 4 << 20

type machineKey struct{}

// newNoise serves what is reachable in the clear: the server's public key and the handshake, behind which nodes speak
// HTTP/2 to the handlers of the machine protocol.
func newNoise(t *tailnet) http.Handler {
	private := key.NewMachine()
	legacy := key.NewControl()

	machine := http.NewServeMux()
	machine.HandleFunc("POST /machine/register", t.serveRegister)
	machine.HandleFunc("POST /machine/map", t.serveMap)
	machine.HandleFunc("POST /machine/set-dns", t.serveSetDNS)
	machine.HandleFunc("POST /machine/update-health", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
	machine.HandleFunc("POST /c2n/{token}", t.serveReply)

	outer := http.NewServeMux()
	outer.HandleFunc("GET /key", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, tailcfg.OverTLSPublicKeyResponse{LegacyPublicKey: legacy.Public(), PublicKey: private.Public()})
	})
	outer.HandleFunc("GET /generate_204", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})
	outer.HandleFunc("POST /ts2021", func(w http.ResponseWriter, r *http.Request) {
		conn, err := controlhttpserver.AcceptHTTP(r.Context(), w, r, private, nil)
		if err != nil {
			log.Printf("handshake with %s: %v", r.RemoteAddr, err)
			return
		}
		defer conn.Close()
		new(http2.Server).ServeConn(conn, &http2.ServeConnOpts{
			Context:    context.WithValue(r.Context(), machineKey{}, conn.Peer()),
			BaseConfig: &http.Server{Handler: machine},
		})
	})
	return outer
}

// machineOf tells who has made the handshake.
func machineOf(r *http.Request) key.MachinePublic {
	machine, _ := r.Context().Value(machineKey{}).(key.MachinePublic)
	return machine
}

func readJSON(r *http.Request, into any) error {
	return json.NewDecoder(io.LimitReader(r.Body, largest)).Decode(into)
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		log.Printf("answer: %v", err)
	}
}

// serveSetDNS takes a node's answer to an ACME challenge.
func (t *tailnet) serveSetDNS(w http.ResponseWriter, r *http.Request) {
	var request tailcfg.SetDNSRequest
	if err := readJSON(r, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byKey(request.NodeKey)
	if n == nil || n.machine != machineOf(r) {
		http.Error(w, "unknown node", http.StatusForbidden)
		return
	}
	name := strings.ToLower(request.Name)
	host, isChallenge := strings.CutPrefix(name, "_acme-challenge.")
	allowed := false
	for _, domain := range t.certDomains(n) {
		allowed = allowed || domain == host
	}
	if !isChallenge || !allowed || request.Type != "TXT" {
		http.Error(w, fmt.Sprintf("%s %s: not a challenge for a name of this node", request.Type, name), http.StatusForbidden)
		return
	}
	t.challenges[name] = append(t.challenges[name], request.Value)
	writeJSON(w, tailcfg.SetDNSResponse{})
}
