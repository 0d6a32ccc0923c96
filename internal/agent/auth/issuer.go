package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	discoveryPath, keysPath = "/.well-known/openid-configuration", "/openid/v1/jwks"
	// refreshInterval is how often the keys are read at most, because of tokens with unknown keys.
	refreshInterval = 10 * time.Second
	// keysAge is how old keys may be that are used, as long as there are newer ones to be had.
	keysAge = time.Hour
)

// errUnknownKey says that none of the issuer's keys has the name.
var errUnknownKey = errors.New("the issuer has no such key")

// issuer knows the name and the public keys with which the API server issues tokens. The keys always come from the API
// server itself, wherever its configuration says that others find them.
type issuer struct {
	api *apiServer

	mu   sync.Mutex
	name string
	keys map[string]jose.JSONWebKey
	// read is when the keys were read, tried when that was last attempted, failure why it failed.
	read, tried time.Time
	failure     error
}

// key returns the issuer's name and its key. The error is errUnknownKey, or why the keys are not known.
func (i *issuer) key(ctx context.Context, id string) (string, jose.JSONWebKey, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	key, known := i.keys[id]
	if !known || time.Since(i.read) > keysAge {
		i.refresh(ctx)
		key, known = i.keys[id]
	}
	switch {
	case known:
		return i.name, key, nil
	case i.failure != nil:
		return "", jose.JSONWebKey{}, i.failure
	}
	return "", jose.JSONWebKey{}, errUnknownKey
}

// refresh reads the keys, unless that was just attempted. When it fails the keys stay as they are.
func (i *issuer) refresh(ctx context.Context) {
	if time.Since(i.tried) < refreshInterval {
		return
	}
	i.tried = time.Now()
	name, keys, err := i.fetch(ctx)
	if i.failure = err; err == nil {
		i.name, i.keys, i.read = name, keys, i.tried
	}
}

func (i *issuer) fetch(ctx context.Context) (string, map[string]jose.JSONWebKey, error) {
	var discovery struct {
		Issuer string `json:"issuer"`
	}
	if err := i.api.call(ctx, http.MethodGet, discoveryPath, nil, &discovery); err != nil {
		return "", nil, fmt.Errorf("read the issuer of tokens: %w", err)
	}
	if discovery.Issuer == "" {
		return "", nil, errors.New("read the issuer of tokens: the API server names none")
	}
	var set jose.JSONWebKeySet
	if err := i.api.call(ctx, http.MethodGet, keysPath, nil, &set); err != nil {
		return "", nil, fmt.Errorf("read the keys of the issuer of tokens: %w", err)
	}
	keys := map[string]jose.JSONWebKey{}
	for _, key := range set.Keys {
		// IsPublic is false for a symmetric key, with which whoever can verify can sign.
		if key.KeyID != "" && key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			keys[key.KeyID] = key
		}
	}
	return discovery.Issuer, keys, nil
}
