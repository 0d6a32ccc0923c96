package credentials

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

func TestATokenIsRenewedWellBeforeItsEnd(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	renewals := map[time.Time]bool{}
	for _, life := range []time.Duration{time.Minute, 10 * time.Minute, 24 * time.Hour} {
		for range 20 {
			token := newToken("x", now, life)
			g.Expect(token.renew).To(And(BeTemporally(">=", now.Add(life*70/100)), BeTemporally("<=", now.Add(life*80/100))))
			g.Expect(token.expires).To(And(BeTemporally("<", now.Add(life)), BeTemporally(">", token.renew)))
			renewals[token.renew] = true
		}
	}
	g.Expect(len(renewals)).To(BeNumerically(">", 30), "all are renewed at the same moment")
}

func TestATokenThatCannotBeRenewedIsUsedToItsEnd(t *testing.T) {
	g := NewWithT(t)
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		http.Error(w, "away", http.StatusServiceUnavailable)
	}))
	defer server.Close()
	tokens, err := NewTokens(&rest.Config{Host: server.URL})
	g.Expect(err).NotTo(HaveOccurred())
	now := time.Now()
	tokens.tokens["a"] = token{value: "old", issued: now.Add(-time.Hour), renew: now.Add(-time.Minute), expires: now.Add(time.Minute)}
	for range 3 {
		g.Expect(tokens.get(t.Context(), "a")).To(Equal("old"))
	}
	g.Expect(requests.Load()).To(BeEquivalentTo(1), "every call tried to renew it")
	tokens.tokens["a"] = token{value: "old", expires: now}
	_, err = tokens.get(t.Context(), "a")
	g.Expect(status.Code(err)).To(Equal(codes.Unavailable))
}

func TestATokenThatEndedIsDropped(t *testing.T) {
	g := NewWithT(t)
	tokens := &Tokens{tokens: map[string]token{"old": {expires: time.Now().Add(-time.Second)}, "good": newToken("x", time.Now(), time.Hour)}}
	tokens.keep("new", newToken("x", time.Now(), time.Hour))
	g.Expect(tokens.tokens).To(And(HaveLen(2), Not(HaveKey("old"))))
}

func TestOnlyATokenOfSomeAgeIsDropped(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	tokens := &Tokens{tokens: map[string]token{"old": newToken("x", now.Add(-dropAge), time.Hour), "new": newToken("x", now, time.Hour)}}
	tokens.Drop("old")
	tokens.Drop("new")
	tokens.Drop("unknown")
	g.Expect(tokens.tokens).To(And(HaveLen(1), HaveKey("new")))
}

func TestTheCodeSaysWhetherToTryAgain(t *testing.T) {
	resource := schema.GroupResource{Resource: "serviceaccounts/token"}
	tests := []struct {
		name string
		err  error
		want codes.Code
	}{
		{"no ServiceAccount", errNoServiceAccount, codes.Unauthenticated},
		{"may not", apierrors.NewForbidden(resource, "controller", errors.New("no")), codes.Unauthenticated},
		{"unknown", apierrors.NewUnauthorized("who?"), codes.Unauthenticated},
		{"gone", apierrors.NewNotFound(resource, "controller"), codes.Unauthenticated},
		{"overloaded", apierrors.NewTooManyRequests("slow down", 1), codes.Unavailable},
		{"away", errors.New("connection refused"), codes.Unavailable},
		{"too slow", context.DeadlineExceeded, codes.DeadlineExceeded},
		{"no longer wanted", context.Canceled, codes.Canceled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			NewWithT(t).Expect(status.Code(tokenError("a", tt.err))).To(Equal(tt.want))
		})
	}
}
