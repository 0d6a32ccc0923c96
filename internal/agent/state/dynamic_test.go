package state

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestDynamicProvidersAreFoundInTheState(t *testing.T) {
	for kind, dynamic := range map[string]bool{
		"pulumi:providers:pulumi-nodejs": true, "pulumi-nodejs:dynamic:Resource": true, "pulumi-nodejs:dynamic/Digest:Digest": true,
		"pulumi-python:dynamic:Resource": true, "pulumi:providers:aws": false, "aws:s3:Bucket": false, "": false,
	} {
		g, path := NewWithT(t), filepath.Join(t.TempDir(), "state.json")
		state := `{"version": 3, "deployment": {"resources": [{"urn": "a", "type": "pulumi:pulumi:Stack", "outputs": {"type": "x"}}, {"type": "` + kind + `", "inputs": {"a": [1]}}]}}`
		g.Expect(os.WriteFile(path, []byte(state), 0o600)).To(Succeed())
		facts, err := ReadFacts(path)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(facts.Dynamic).To(Equal(dynamic), kind)
		g.Expect(facts.Resources).To(Equal(2))
	}
}
