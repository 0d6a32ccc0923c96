package stack

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// FuzzShownOutputs checks that the outputs in a status are JSON, bounded, and not those that the annotation names as secret.
func FuzzShownOutputs(f *testing.F) {
	f.Add("a", []byte(`{"x": 1}`), []byte(`"canary-s3cr3t-value"`), `["b"]`, `{"a": "the/name"}`)
	f.Add("a", []byte(`{`), []byte("canary-s3cr3t-value"), ``, `{"b": "a"}`)
	f.Add("c", []byte(strings.Repeat("1", maxStatusOutputs)), []byte(`"canary-s3cr3t-value"`), `["b", "b"]`, `{"c": ""}`)
	f.Add("a", []byte(" 1 "), []byte("2"), `{"b": true}`, `[]`)
	f.Add("a", []byte("\"\xff\""), []byte("2"), `null`, `{"a": null, "b": "\ud800"}`)
	f.Fuzz(func(t *testing.T, key string, value, secretValue []byte, secrets, names string) {
		secret := &corev1.Secret{Data: map[string][]byte{key: value, "b": secretValue}}
		secret.Annotations = map[string]string{autov1alpha1.SecretOutputsAnnotation: secrets, autov1alpha1.OutputNamesAnnotation: names}
		outputs := shownOutputs(secret)
		size := 0
		for name, output := range outputs {
			size += len(name) + len(output.Raw)
			if !json.Valid(output.Raw) {
				t.Fatalf("%q is %q", name, output.Raw)
			}
		}
		if size > maxStatusOutputs+maxStatusNotes {
			t.Fatalf("%d bytes", size)
		}
		var named []string
		if json.Unmarshal([]byte(secrets), &named) == nil && len(named) == 1 && named[0] == "b" && key != "b" {
			for name, output := range outputs {
				if strings.Contains(string(output.Raw), "canary-s3cr3t-value") && !strings.Contains(string(value), "canary") {
					t.Fatalf("%q shows the secret", name)
				}
			}
		}
	})
}
