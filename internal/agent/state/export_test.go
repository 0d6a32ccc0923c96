package state

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// FuzzState checks that reading a state as a stream finds what reading it as a whole finds.
func FuzzState(f *testing.F) {
	f.Add(`{"version":3,"deployment":{"secrets_providers":{"type":"passphrase","state":{"salt":"v1:a:b"}},"resources":[{"urn":"a","custom":true}],` +
		`"pending_operations":[{"resource":{"urn":"urn:pulumi:d::p::t::n"},"type":"creating"},{"resource":{"urn":"x"},"type":"deleting"}]}}`)
	f.Add(`{"deployment":{"secrets_providers":{"type":"cloud","state":{"url":"awskms://x","encryptedkey":"eA=="}}}}`)
	f.Add(`{"deployment":null}`)
	f.Add(`{"deployment":{"secrets_providers":null,"pending_operations":null,"resources":[[[{"a":[]}]]]}} trailing`)
	f.Add(`{"deployment":{"pending_operations":[null,{"type":"creating"}]}}`)
	f.Add(`{"a":`)
	path := filepath.Join(f.TempDir(), "state.json")
	f.Fuzz(func(t *testing.T, state string) {
		if err := os.WriteFile(path, []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
		facts, err := ReadFacts(path)
		if err != nil && strings.Contains(err.Error(), path) {
			t.Fatalf("the error names a path: %v", err)
		}
		// If a key occurs twice, or in another case, the two ways may differ.
		if !json.Valid([]byte(state)) || strings.Count(state, "deployment") != 1 || strings.Count(state, "pending_operations") > 1 || strings.ContainsAny(state, "\\") {
			return
		}
		var whole struct {
			Deployment struct {
				Pending []struct {
					Type     string `json:"type"`
					Resource struct {
						URN string `json:"urn"`
					} `json:"resource"`
				} `json:"pending_operations"`
			} `json:"deployment"`
		}
		if json.Unmarshal([]byte(state), &whole) != nil || err != nil {
			return
		}
		var creates []string
		for _, operation := range whole.Deployment.Pending {
			if operation.Type == "creating" {
				creates = append(creates, operation.Resource.URN)
			}
		}
		if !slices.Equal(creates, facts.PendingCreates) {
			t.Fatalf("%q: read %q, want %q", state, facts.PendingCreates, creates)
		}
	})
}
