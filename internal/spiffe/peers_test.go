package spiffe

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestPeersAreMatchedAsFluxDoes(t *testing.T) {
	own := spiffeid.RequireTrustDomainFromString("example.org")
	for value, ids := range map[string]map[string]bool{
		"spiffe://example.org/ns/flux-system/sa/source-controller": {
			"spiffe://example.org/ns/flux-system/sa/source-controller":   true,
			"spiffe://example.org/ns/flux-system/sa/source-controller-2": false,
			"spiffe://example.com/ns/flux-system/sa/source-controller":   false,
		},
		"spiffe://example.org/ns/flux-system/": {
			"spiffe://example.org/ns/flux-system/sa/source-controller": true,
			"spiffe://example.org/ns/flux-system":                      true,
			"spiffe://example.org/ns/flux-system-2/sa/x":               false,
			"spiffe://example.org/ns":                                  false,
		},
		"spiffe://example.org": {
			"spiffe://example.org/anything": true,
			"spiffe://example.org":          true,
			"spiffe://example.org.evil/x":   false,
		},
		"spiffe://self/ns/flux-system/": {
			"spiffe://example.org/ns/flux-system/sa/x": true,
			"spiffe://self/ns/flux-system/sa/x":        false,
		},
		"spiffe://self": {"spiffe://example.org/x": true, "spiffe://example.com/x": false},
	} {
		t.Run(value, func(t *testing.T) {
			g := NewWithT(t)
			peers, err := ParsePeers([]string{"spiffe://elsewhere.example/x", value})
			g.Expect(err).NotTo(HaveOccurred())
			for id, trusted := range ids {
				g.Expect(peers.match(spiffeid.RequireFromString(id), own)).To(Equal(trusted), id)
			}
		})
	}
	NewWithT(t).Expect(Peers{}.match(spiffeid.RequireFromString("spiffe://example.org/x"), own)).To(BeFalse(), "nobody is trusted by default")
}

func TestValuesThatAreNoSPIFFEIDsAreRefused(t *testing.T) {
	for _, value := range []string{
		"", "self", "example.org", "https://example.org/x", "spiffe://", "spiffe:///x", "spiffe://example.org/", "spiffe://example.org//",
		"spiffe://example.org/a//b", "spiffe://example.org/../x", "spiffe://Example.org/x", "spiffe://example.org:8081/x", "spiffe://example.org/x?y",
		"spiffe://example.org/*", "spiffe://user@example.org/x",
	} {
		_, err := ParsePeers([]string{"spiffe://example.org/x", value})
		NewWithT(t).Expect(err).To(HaveOccurred(), value)
	}
}
