package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// api is the HTTP API for administrators, on the state that the control protocol has: Tailscale's v2 paths by access
// token, Headscale's v1 paths by API key. Signatures of identity tokens are not checked, and every client may give every
// tag; all else that a client is refused for here it is refused for there.
type api struct {
	t *tailnet

	mu         sync.Mutex
	clients    map[string]string   // OAuth clients: id -> secret
	identities map[string]identity // federated identities: id -> whose tokens are taken
	apiKeys    map[string]bool     // Headscale's
	tokens     map[string]time.Time
	lifetime   time.Duration
	policy     string
	etags      bool // whether Services have versions
	calls      map[string]int
	faults     []*fault
	// The number behind the address that the next Service gets.
	lastService int
}

// identity is whose tokens are exchanged: a token's subject and audience, or the token as it is.
type identity struct {
	Token    string `json:"token"`
	Subject  string `json:"subject"`
	Audience string `json:"audience"`
}

// fault is what the next calls of a path get instead of, or after, what they ask for.
type fault struct {
	// Call is method and pattern, as "DELETE /api/v2/device/{id}".
	Call  string `json:"call"`
	Count int    `json:"count"`
	// Status is answered; nothing is done.
	Status     int    `json:"status"`
	RetryAfter string `json:"retry_after"`
	// Kind is "" (the status), "silence" (no answer while the client waits), "hang-up" (the connection is closed),
	// "lost" (done, then the connection is closed), "meddle" (done, then another client changes the Service).
	Kind string `json:"kind"`
}

// refusal is an error with its status.
type refusal struct {
	status  int
	message string
}

func (r refusal) Error() string { return r.message }

func refuse(status int, format string, values ...any) refusal {
	return refusal{status, fmt.Sprintf(format, values...)}
}

func newAPI(t *tailnet) *api {
	return &api{
		t:          t,
		clients:    map[string]string{},
		identities: map[string]identity{},
		apiKeys:    map[string]bool{},
		tokens:     map[string]time.Time{},
		lifetime:   time.Hour,
		policy:     "{\n  // Everyone may reach everything.\n  \"grants\": [{\"src\": [\"*\"], \"dst\": [\"*\"], \"ip\": [\"*\"]}],\n}\n",
		calls:      map[string]int{},
	}
}

// handler serves the API's paths and leaves all others to the next one.
func (a *api) handler(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		a.note(r)
		writeRefusal(w, refuse(http.StatusNotFound, "no such path"))
	})
	open := func(string) error { return nil }
	for pattern, handle := range map[string]handle{
		"POST /api/v2/oauth/token":          a.giveToken,
		"POST /api/v2/oauth/token-exchange": a.exchangeToken,
	} {
		a.serve(mux, pattern, open, handle)
	}
	for pattern, handle := range a.v2() {
		a.serve(mux, pattern, a.checkToken, handle)
	}
	for pattern, handle := range a.v1() {
		a.serve(mux, pattern, a.checkAPIKey, handle)
	}
	return mux
}

// handle answers a call, with the tailnet's state held.
type handle func(w http.ResponseWriter, r *http.Request) (any, error)

func (a *api) serve(mux *http.ServeMux, pattern string, authorize func(bearer string) error, handle handle) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		planned := a.note(r)
		if planned != nil {
			switch planned.Kind {
			case "silence":
				// Only once the body is read the server notices that the client leaves.
				io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
				return
			case "hang-up":
				panic(http.ErrAbortHandler)
			case "":
				if planned.RetryAfter != "" {
					w.Header().Set("Retry-After", planned.RetryAfter)
				}
				writeRefusal(w, refuse(planned.Status, "planned by the test"))
				return
			}
		}
		bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if err := authorize(bearer); err != nil {
			writeRefusal(w, err)
			return
		}
		a.t.mu.Lock()
		answer, err := handle(w, r)
		if planned != nil && planned.Kind == "meddle" {
			a.meddle(r.PathValue("name"))
		}
		a.t.mu.Unlock()
		switch text, isText := answer.(string); {
		case err != nil:
			writeRefusal(w, err)
		case planned != nil && planned.Kind == "lost":
			panic(http.ErrAbortHandler)
		case isText:
			fmt.Fprint(w, text)
		default:
			writeJSON(w, answer)
		}
	})
}

// note counts the call and takes what is planned for it.
func (a *api) note(r *http.Request) *fault {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[r.Pattern]++
	for _, fault := range a.faults {
		if fault.Call == r.Pattern && fault.Count > 0 {
			fault.Count--
			return fault
		}
	}
	return nil
}

func writeRefusal(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	if refused, ok := err.(refusal); ok {
		status = refused.status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"message": err.Error()})
}

func (a *api) checkToken(bearer string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tokens[bearer].Before(time.Now()) {
		return refuse(http.StatusUnauthorized, "API token invalid")
	}
	return nil
}

func (a *api) checkAPIKey(bearer string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.apiKeys[bearer] {
		return refuse(http.StatusUnauthorized, "Unauthorized")
	}
	return nil
}

// giveToken is the OAuth client credentials grant (RFC 6749, section 4.4), by either way to name the client.
func (a *api) giveToken(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, secret, basic := r.BasicAuth()
	if !basic {
		id, secret = r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if known, exists := a.clients[id]; !exists || known != secret {
		return nil, refuse(http.StatusUnauthorized, "API token invalid")
	}
	return a.newToken(), nil
}

// exchangeToken gives an access token for an identity token of another issuer.
func (a *api) exchangeToken(_ http.ResponseWriter, r *http.Request) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, exists := a.identities[r.PostFormValue("client_id")]
	if !exists {
		return nil, refuse(http.StatusUnauthorized, "no federated identity has this client id")
	}
	if err := known.check(r.PostFormValue("jwt")); err != nil {
		return nil, err
	}
	return a.newToken(), nil
}

func (a *api) newToken() any {
	token := "tskey-api-" + rand.Text()
	a.tokens[token] = time.Now().Add(a.lifetime)
	return map[string]any{
		"access_token": token, "token_type": "Bearer", "expires_in": int(a.lifetime.Seconds()), "scope": "all",
	}
}

func (known identity) check(token string) error {
	if known.Token != "" {
		if token != known.Token {
			return refuse(http.StatusUnauthorized, "the identity token is not the one that is expected")
		}
		return nil
	}
	var claims struct {
		Subject  string `json:"sub"`
		Audience any    `json:"aud"`
		Expires  int64  `json:"exp"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return refuse(http.StatusBadRequest, "the identity token is no JWT")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return refuse(http.StatusBadRequest, "the identity token is no JWT")
	}
	audiences, _ := claims.Audience.([]any)
	audiences = append(audiences, claims.Audience)
	ours := slices.ContainsFunc(audiences, func(audience any) bool { return audience == any(known.Audience) })
	if claims.Subject != known.Subject || !ours || time.Unix(claims.Expires, 0).Before(time.Now()) {
		return refuse(http.StatusUnauthorized, "the identity token is of another subject or audience, or has expired")
	}
	return nil
}

// admin adds what tests may do to the API.
func (a *api) admin(mux *http.ServeMux) {
	held := func(pattern string, handle func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			a.mu.Lock()
			answer, err := handle(r)
			a.mu.Unlock()
			respond(w, answer, err)
		})
	}
	held("PUT /api/clients", func(r *http.Request) (any, error) { clear(a.clients); return nil, readJSON(r, &a.clients) })
	held("PUT /api/identities", func(r *http.Request) (any, error) {
		clear(a.identities)
		return nil, readJSON(r, &a.identities)
	})
	held("PUT /api/keys", func(r *http.Request) (any, error) { clear(a.apiKeys); return nil, readJSON(r, &a.apiKeys) })
	held("PUT /api/lifetime", func(r *http.Request) (any, error) {
		var seconds float64
		err := readJSON(r, &seconds)
		a.lifetime = time.Duration(seconds * float64(time.Second))
		return nil, err
	})
	held("PUT /api/etags", func(r *http.Request) (any, error) { return nil, readJSON(r, &a.etags) })
	held("PUT /api/policy", func(r *http.Request) (any, error) { return nil, readJSON(r, &a.policy) })
	held("POST /api/expire", func(*http.Request) (any, error) { clear(a.tokens); return nil, nil })
	held("POST /api/faults", func(r *http.Request) (any, error) {
		planned := &fault{Count: 1}
		a.faults = append(a.faults, planned)
		return nil, readJSON(r, planned)
	})
	held("DELETE /api/faults", func(*http.Request) (any, error) { a.faults = nil; return nil, nil })
	// Calls since this was asked last.
	held("POST /api/calls", func(*http.Request) (any, error) {
		calls := maps.Clone(a.calls)
		clear(a.calls)
		return calls, nil
	})
}
