package spiffe

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// ownTrustDomain, in the place of a trust domain, stands for the trust domain of the own identity.
const ownTrustDomain = "self"

// Peers are the SPIFFE IDs of the servers to trust. The zero value trusts no server.
type Peers struct{ patterns []pattern }

// pattern matches one SPIFFE ID, those below its path if prefix is set, or those of its trust domain if it has no path.
type pattern struct {
	id     spiffeid.ID
	prefix bool
}

// ParsePeers parses the values of a flag in the forms that Flux's controllers know:
//
//   - spiffe://example.org/ns/flux-system/sa/source-controller is one ID,
//   - spiffe://example.org/ns/flux-system/ is every ID below this path,
//   - spiffe://example.org is every ID of the trust domain.
//
// The trust domain "self" is that of the own identity. Any other value is an error.
func ParsePeers(values []string) (Peers, error) {
	var peers Peers
	for _, value := range values {
		text, prefix := strings.CutSuffix(value, "/")
		id, err := spiffeid.FromString(text)
		if err == nil && prefix && id.Path() == "" {
			err = errors.New("a slash follows a path; all of a trust domain has none")
		}
		if err != nil {
			return Peers{}, fmt.Errorf("%q: %w", value, err)
		}
		peers.patterns = append(peers.patterns, pattern{id, prefix})
	}
	return peers, nil
}

// Empty reports whether no server is trusted.
func (p Peers) Empty() bool { return len(p.patterns) == 0 }

// match reports whether a controller of the trust domain trusts the ID.
func (p Peers) match(id spiffeid.ID, own spiffeid.TrustDomain) bool {
	for _, pattern := range p.patterns {
		if pattern.matcher(own)(id) == nil {
			return true
		}
	}
	return false
}

func (p pattern) matcher(own spiffeid.TrustDomain) spiffeid.Matcher {
	wanted := p.id
	if wanted.TrustDomain().Name() == ownTrustDomain {
		// The path was valid in an ID before.
		wanted = spiffeid.RequireFromPath(own, wanted.Path())
	}
	switch {
	case p.prefix:
		return spiffeid.MatchIDPrefix(wanted)
	case wanted.Path() == "":
		return spiffeid.MatchMemberOf(wanted.TrustDomain())
	}
	return spiffeid.MatchID(wanted)
}
