package workflows

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

const (
	image    = "registry.example.com/flux/stack-controller"
	identity = "--certificate-identity=https://github.com/stack-controller/stack-controller/.github/workflows/release.yaml@refs/tags/v1.2.3" +
		" --certificate-oidc-issuer=https://token.actions.githubusercontent.com"
)

// digest is one of a few digests.
func digest(n int) string { return "sha256:" + strings.Repeat(fmt.Sprint(n), 64) }

// sign runs .ci/sign on a release of one image for two platforms and a chart. Signing asks an identity provider on the Internet, so
// in the place of cosign is a program that notes what it is called with; it fails when it is to do what the test names. sign returns
// the calls and the outputs of the step.
func sign(t *testing.T, failing string) (calls, outputs []string, err error) {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	release := filepath.Join(dir, "release")
	g.Expect(os.Mkdir(release, 0o700)).To(Succeed())
	write := func(path, content string) {
		g.Expect(os.WriteFile(filepath.Join(dir, path), []byte(content), 0o700)).To(Succeed())
	}
	write("cosign", "#!/bin/sh\necho \"$@\" >>"+dir+"/calls\n[ \"$1\" != '"+failing+"' ]\n")
	write("calls", "")
	write("outputs", "")
	write("release/checksums.txt", "")
	write("release/images.txt", image+":v1.2.3@"+digest(1)+"\nregistry.example.com/flux/charts/stack-controller:1.2.3@"+digest(4)+"\n")
	for n, platform := range []string{"linux-amd64", "linux-arm64"} {
		write("release/stack-controller."+platform+".spdx.json", `{"packages": [{"name": "`+digest(n+2)+`"}, {"name": "example.com/module"}]}`)
	}
	cmd := exec.CommandContext(t.Context(), inRepository(".ci", "sign"), release)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "IMAGE_REGISTRY=registry.example.com/flux", "GITHUB_OUTPUT="+filepath.Join(dir, "outputs"),
		"GITHUB_SERVER_URL=https://github.com", "GITHUB_WORKFLOW_REF=stack-controller/stack-controller/.github/workflows/release.yaml@refs/tags/v1.2.3")
	_, err = cmd.Output()
	lines := func(name string) []string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		text := strings.ReplaceAll(string(content), release+"/", "")
		return strings.Split(strings.TrimSpace(text), "\n")
	}
	return lines("calls"), lines("outputs"), err
}

func TestAReleaseIsSignedByDigestAndVerifiedAsUsersDo(t *testing.T) {
	g := NewWithT(t)
	calls, outputs, err := sign(t, "")
	g.Expect(err).NotTo(HaveOccurred())
	var want []string
	signed := func(reference string) {
		want = append(want, "sign --yes "+reference, "verify "+identity+" "+reference)
	}
	signed(image + "@" + digest(1))
	for n, platform := range []string{"linux-amd64", "linux-arm64"} {
		described := image + "@" + digest(n+2)
		want = append(want, "attest --yes --type=spdxjson --predicate=stack-controller."+platform+".spdx.json "+described,
			"verify-attestation --type=spdxjson "+identity+" "+described)
	}
	signed("registry.example.com/flux/charts/stack-controller@" + digest(4))
	want = append(want, "sign-blob --yes --bundle=checksums.txt.sigstore.json checksums.txt",
		"verify-blob "+identity+" --bundle=checksums.txt.sigstore.json checksums.txt")
	g.Expect(calls).To(Equal(want))
	g.Expect(outputs).To(Equal([]string{"stack-controller=" + digest(1), "charts-stack-controller=" + digest(4)}))
}

func TestAReleaseThatCannotBeVerifiedIsNotPublished(t *testing.T) {
	for _, failing := range []string{"sign", "verify", "attest", "verify-attestation", "sign-blob", "verify-blob"} {
		t.Run(failing, func(t *testing.T) {
			calls, _, err := sign(t, failing)
			g := NewWithT(t)
			g.Expect(err).To(HaveOccurred())
			g.Expect(calls[len(calls)-1]).To(HavePrefix(failing + " "))
		})
	}
}
