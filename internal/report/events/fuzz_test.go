package events

import (
	"strings"
	"testing"
)

// FuzzAddress checks that the address of the receiver is one that can be posted to, and that no error shows a password in it.
func FuzzAddress(f *testing.F) {
	for _, seed := range []string{
		"http://notification-controller.flux-system.svc/", "https://user:canary-password@host/path", "http://user:canary-password @host", "http://user:canary-password@host:port",
		"ftp://user:canary-password@host", "://", "http://", "http://[::1", "http://user:canary-password@", "http:user:canary-password@host",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if err := checkAddress(address); err != nil {
			if strings.Contains(err.Error(), "canary-password") && strings.Count(address, "canary-password") == 1 && strings.Contains(address, "://user:canary-password@") {
				t.Fatal(err)
			}
			return
		}
		if !strings.HasPrefix(strings.ToLower(address), "http") {
			t.Fatalf("accepted %q", address)
		}
	})
}
