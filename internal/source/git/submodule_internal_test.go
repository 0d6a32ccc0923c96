package git

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
)

func TestSubmodulesOnOtherHostsMayHaveCertificatesOfTheSystem(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	parent, err := NewClient(Options{}).open(Remote{URL: "https://git.example.com/org/app", CA: ca})
	g.Expect(err).NotTo(HaveOccurred())
	system, err := x509.SystemCertPool()
	g.Expect(err).NotTo(HaveOccurred())
	system.AppendCertsFromPEM(ca)
	only := x509.NewCertPool()
	only.AppendCertsFromPEM(ca)
	for url, trusted := range map[string]*x509.CertPool{
		"../lib": only, "https://git.example.com/other": only, "https://github.com/org/lib": system,
	} {
		remote, err := parent.submoduleRemote(url)
		g.Expect(err).NotTo(HaveOccurred())
		child, err := parent.client.open(remote)
		g.Expect(err).NotTo(HaveOccurred())
		transport, release, err := child.transport()
		g.Expect(err).NotTo(HaveOccurred())
		defer release()
		g.Expect(transport.TLSClientConfig.RootCAs.Equal(trusted)).To(BeTrue(), url)
		nested, err := child.submoduleRemote("https://gitlab.com/org/nested")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nested.TrustsSystem).To(BeTrue())
	}
}

// A public library is often named by its https URL, also on the host whose repositories need a key.
func TestPrivateKeyOfTheParentIsNoMistakeOfASubmoduleOverHTTPS(t *testing.T) {
	g := NewWithT(t)
	client := NewClient(Options{})
	parent, err := client.open(Remote{URL: "git@git.example.com:org/app", Auth: Auth{PrivateKey: []byte("key")}})
	g.Expect(err).NotTo(HaveOccurred())
	remote, err := parent.submoduleRemote("https://git.example.com/org/lib")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(client.open(remote)).Error().To(MatchError(ContainSubstring("a private key cannot be used over https")), "a user who names it has made one")
	child, err := client.prepare(remote)
	g.Expect(err).NotTo(HaveOccurred())
	nested, err := child.submoduleRemote("git@git.example.com:org/nested")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(nested.Auth.PrivateKey).NotTo(BeEmpty())
}
