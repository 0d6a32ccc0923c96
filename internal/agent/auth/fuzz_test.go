package auth

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
)

// FuzzBearerToken checks that a token is exactly what the header contains after "Bearer".
func FuzzBearerToken(f *testing.F) {
	for _, seed := range []string{"", "Bearer", "Bearer ", "Bearer abc", "bearer a.b.c", "BEARER  x", "Basic eA==", "Bearer a b", "Bearer a\r\nx", "Bearer é"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		token, err := bearerToken(metadata.MD{"authorization": {header}})
		if err != nil {
			if token != "" {
				t.Fatal("there is a token beside the error")
			}
			return
		}
		if token == "" || len(token) > maxTokenSize || strings.ContainsAny(token, " \t\r\n\x00") || !strings.EqualFold(header, "bearer "+token) {
			t.Fatalf("%q is no token", token)
		}
	})
}

// FuzzVerifyToken checks that any token is refused without a panic, and that the error does not quote the token.
func FuzzVerifyToken(f *testing.F) {
	for _, seed := range []string{
		"a.b.c", "..", "eyJhbGciOiJub25lIn0.e30.", "eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ.e30.AAAA",
		"eyJhbGciOiJSUzI1NiIsImNyaXQiOlsiYjY0Il19.e30.AAAA", "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjF9.AAAA", `{"payload":"e30","signatures":[]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		a := &Authorizer{options: Options{Audience: "audience"}, log: slog.New(slog.DiscardHandler), issuer: &issuer{tried: time.Now()}}
		var untrusted untrustedError
		if _, err := a.verify(t.Context(), token); !errors.As(err, &untrusted) {
			t.Fatalf("verified: %v", err)
		} else if len(token) > 20 && strings.Contains(err.Error(), token) {
			t.Fatal("the error quotes the token")
		}
		_ = unverifiedEnd(token)
	})
}
