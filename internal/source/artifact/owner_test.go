package artifact_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

const (
	victimSource   = "GitRepository.source.toolkit.fluxcd.io/victim/app"
	attackerSource = "GitRepository.source.toolkit.fluxcd.io/attacker/app"
)

func TestKnowingADigestGivesNobodyTheContentOfAnotherSource(t *testing.T) {
	server := newServer(t)
	victim := server.publish("name: victim")
	victim.Source = victimSource
	for name, attack := range map[string]func(*artifact.Reference){
		"from nowhere":                     func(ref *artifact.Reference) { ref.URL = "http://x.invalid/" },
		"from a place with something else": func(ref *artifact.Reference) { ref.URL = server.publish("name: attacker").URL },
		"made by a Maker":                  func(ref *artifact.Reference) { _, *ref = makerOf("attacker", program("attacker")) },
		"with the other's name as its key": func(ref *artifact.Reference) { _, *ref = makerOf("source/"+victimSource, program("attacker")) },
		"of a source without a name":       func(ref *artifact.Reference) { ref.URL, ref.Source = "http://x.invalid/", "" },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			store := newStore(t, artifact.Options{Dir: dir, HTTPRetries: -1})
			g.Expect(store.Fetch(t.Context(), victim)).To(Succeed())
			stolen := victim
			stolen.Source = attackerSource
			attack(&stolen)
			stolen.Digest = victim.Digest
			for _, store := range []*artifact.Store{store, newStore(t, artifact.Options{Dir: dir, HTTPRetries: -1})} {
				g.Expect(store.Stored(stolen)).To(BeEmpty())
				g.Expect(store.Fetch(t.Context(), stolen)).NotTo(Succeed())
				_, err := store.Open(stolen)
				g.Expect(err).To(MatchError(artifact.ErrNotStored))
				g.Expect(store.Stored(victim)).To(Equal(victim.Digest), "the victim has it still, after a restart too")
			}
		})
	}
}

func TestContentOfTwoSourcesIsStoredOnceAndServedToBoth(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	one := server.publish("name: demo")
	one.Source = victimSource
	other := one
	other.Source = attackerSource
	dir := t.TempDir()
	store := newStore(t, artifact.Options{Dir: dir})
	g.Expect(store.Fetch(t.Context(), one)).To(Succeed())
	g.Expect(store.Fetch(t.Context(), other)).To(Succeed())
	g.Expect(server.requests.Load()).To(BeEquivalentTo(2), "each proves that its source serves the content")
	g.Expect(filesBelow(dir)).To(HaveLen(3), "the content, and two owners")
	g.Expect(read(store, other)).To(Equal(server.content(one)))
}

func TestDigestOfContentThatWasRefusedIsInTheLogOnly(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	ref := server.publish("name: secret")
	computed := digest.Digest(ref.Digest).Encoded()
	ref.Digest = digest.SHA256.String() + ":" + strings.Repeat("0", 64)
	var log strings.Builder
	store := newStore(t, artifact.Options{Log: funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{})})
	err := store.Fetch(t.Context(), ref)
	g.Expect(err).To(HaveKind(artifact.Integrity))
	g.Expect(err.Error()).NotTo(ContainSubstring(computed))
	g.Expect(log.String()).To(ContainSubstring(computed))
}

func TestRedirectToAnotherHostIsRefusedBeforeAByteIsSent(t *testing.T) {
	g := NewWithT(t)
	var asked atomic.Int32
	content := program("internal")
	internal := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write(content)
	}))
	defer internal.Close()
	server := newServer(t)
	store := newStore(t, artifact.Options{})
	// The client has a connection to the other host that it could use again.
	g.Expect(store.Fetch(t.Context(), artifact.Reference{URL: internal.URL, Source: victimSource, Digest: digest.FromBytes(content).String()})).To(Succeed())
	server.answerWith(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, internal.URL, http.StatusFound) })
	for range 20 {
		err := store.Fetch(t.Context(), artifact.Reference{URL: server.URL(), Source: attackerSource, Digest: digest.FromBytes(content).String()})
		g.Expect(err).To(HaveKind(artifact.Unavailable))
		g.Expect(err).To(MatchError(ContainSubstring("another host")))
	}
	g.Expect(asked.Load()).To(BeEquivalentTo(1), "only the source that may")
	g.Expect(server.requests.Load()).To(BeEquivalentTo(20), "it is not tried again")
}

func TestBodyWithoutAnEndIsGivenUpAtTheLimit(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	ended := make(chan struct{})
	server.answerWith(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 1<<10))
			w.(http.Flusher).Flush()
		}
	})
	store := newStore(t, artifact.Options{Limits: artifact.Limits{MaxDownloadSize: 10_000}, MaxStoreSize: 10_000})
	err := store.Fetch(context.Background(), artifact.Reference{URL: server.URL(), Digest: digest.FromString("x").String()})
	g.Expect(err).To(HaveKind(artifact.TooLarge))
	g.Eventually(ended).Should(BeClosed())
}
