package main

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"tailscale.com/tailcfg"
)

// authKey lets nodes in.
type authKey struct {
	ID            string    `json:"id"`
	Tags          []string  `json:"tags"`
	Reusable      bool      `json:"reusable"`
	Ephemeral     bool      `json:"ephemeral"`
	Preauthorized bool      `json:"preauthorized"`
	Description   string    `json:"description"`
	User          string    `json:"user"`
	Expires       time.Time `json:"expires,omitzero"`

	number  int
	created time.Time
	used    bool
	secret  string
}

// newKey makes an auth key of what it is to give.
func (t *tailnet) newKey(made authKey) *authKey {
	t.lastKey++
	made.number, made.created = t.lastKey, time.Now()
	made.ID = fmt.Sprintf("k%dCNTRL", t.lastKey)
	made.secret = "tskey-auth-" + made.ID + "-" + rand.Text()
	t.keys[made.secret] = &made
	return &made
}

// good tells whether it still lets nodes in.
func (k *authKey) good() bool {
	return (k.Reusable || !k.used) && (k.Expires.IsZero() || k.Expires.After(time.Now()))
}

func (t *tailnet) sortedKeys() []*authKey {
	keys := make([]*authKey, 0, len(t.keys))
	for _, k := range t.keys {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b *authKey) int { return cmp.Compare(a.number, b.number) })
	return keys
}

func (t *tailnet) loginName(id tailcfg.UserID) string {
	for _, user := range t.users {
		if user.ID == id {
			return user.LoginName
		}
	}
	return ""
}
