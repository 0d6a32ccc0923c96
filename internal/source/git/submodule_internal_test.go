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
