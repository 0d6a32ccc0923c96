package git

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// hostKeyNumber returns a signer with a fixed key.
func hostKeyNumber(t testing.TB, n byte) ssh.Signer {
	t.Helper()
	signer, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// knownLine is the end of a line of known hosts.
func knownLine(key ssh.PublicKey) string { return " " + string(ssh.MarshalAuthorizedKey(key)) }

// hostCertificate is a certificate for the host.
func hostCertificate(t testing.TB, key, authority ssh.Signer, host string) ssh.PublicKey {
	t.Helper()
	certificate := &ssh.Certificate{Key: key.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{host}, ValidBefore: ssh.CertTimeInfinity}
	if err := certificate.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	return certificate
}

// The result of the library is compared for lists for which it does not take long. It does not look for patterns without a port.
func TestKnownHostsAreReadAsOpenSSHDoes(t *testing.T) {
	one, two := hostKeyNumber(t, 1), hostKeyNumber(t, 2)
	line, other := knownLine(one.PublicKey()), knownLine(two.PublicKey())
	certificate := hostCertificate(t, one, two, "git.example.com")
	for _, tt := range []struct {
		list, port string
		key        ssh.PublicKey
		known      bool
		trusted    bool
		unlike     bool // the library
	}{
		{list: "git.example.com" + line, known: true, trusted: true},
		{list: "a,git.example.com,b" + line, known: true, trusted: true},
		{list: "Git.EXAMPLE.com" + line, known: true, trusted: true, unlike: true},
		{list: "*.Example.com,!GIT.example.com" + line, unlike: true},
		{list: "\t git.example.com" + strings.ReplaceAll(line, " ", " \t ") + "\r\n", known: true, trusted: true},
		{list: "# comment\n\n \ngit.example.com" + line, known: true, trusted: true},
		{list: "git.example.com" + strings.TrimSpace(line) + " a comment", unlike: true},
		{list: "git.example.com" + strings.TrimRight(line, "\n") + " a comment", known: true, trusted: true},
		{list: "git.example.com" + other, known: true},
		{list: "git.example.com" + other + "git.example.com" + line, known: true, trusted: true},
		{list: "example.com" + line}, {list: "git.example.com.evil" + line}, {list: "evil.git.example.com" + line}, {list: ""},
		{list: "*.example.com" + line, known: true, trusted: true},
		{list: "*" + line, known: true, trusted: true},
		{list: "g?t.*.c?m" + line, known: true, trusted: true},
		{list: "*.*.*.*" + line},
		{list: "?" + line},
		{list: "*git.example.com*" + line, known: true, trusted: true, unlike: true}, // in the library an asterisk stands for at least one character
		{list: "!git.example.com,*.example.com" + line},
		{list: "*.example.com,!git.*" + line},
		{list: "!other.example.com,*.example.com" + line, known: true, trusted: true},
		{list: "!git.example.com" + line + "*.example.com" + line, known: true, trusted: true},
		{list: "[git.example.com]:22" + line, known: true, trusted: true},
		{list: "git.example.com:22" + line, known: true, trusted: true},
		{list: "[git.example.com]:2222" + line},
		{list: "[git.example.com]:2222" + line, port: "2222", known: true, trusted: true},
		{list: "[*.example.com]:2222" + line, port: "2222", known: true, trusted: true},
		{list: "git.example.com" + line, port: "2222"},
		{list: "*.example.com" + line, port: "2222", known: true, trusted: true, unlike: true},
		{list: "*.example.com" + line + "[git.example.com]:2222" + other, port: "2222", known: true, unlike: true},
		{list: "[*.example.com]:22" + line, port: "2222"},
		{list: "!git.*,*.example.com" + line, port: "2222"},
		{list: knownhosts.HashHostname("git.example.com") + line, known: true, trusted: true},
		{list: knownhosts.HashHostname("other.example.com") + line},
		{list: knownhosts.HashHostname("[git.example.com]:2222") + line, port: "2222", known: true, trusted: true},
		{list: knownhosts.HashHostname("git.example.com") + line, port: "2222"},
		{list: "@cert-authority *.example.com" + other, key: certificate, known: true, trusted: true},
		{list: "@cert-authority *.example.com" + line, key: certificate, known: true},
		{list: "@cert-authority other.example.com" + other, key: certificate},
		{list: "git.example.com" + other, key: certificate, known: true},
		{list: "@cert-authority git.example.com" + line, known: true, unlike: true}, // an authority is no host
	} {
		t.Run(tt.list+tt.port, func(t *testing.T) {
			g := NewWithT(t)
			if tt.port == "" {
				tt.port = "22"
			}
			if tt.key == nil {
				tt.key = one.PublicKey()
			}
			address := net.JoinHostPort("git.example.com", tt.port)
			found, err := findHost([]byte(tt.list), "git.example.com", tt.port)
			if strings.Contains(tt.list, "comssh-ed25519") {
				g.Expect(err).To(MatchError(errKnownHosts))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect([]bool{found.isKnown(), found.trusts(address, tt.key)}).To(Equal([]bool{tt.known, tt.trusted}))
			file := filepath.Join(t.TempDir(), "known_hosts")
			g.Expect(os.WriteFile(file, []byte(tt.list), 0o600)).To(Succeed())
			library, err := knownhosts.New(file)
			g.Expect(err).NotTo(HaveOccurred())
			if !tt.unlike {
				g.Expect(library(address, &net.TCPAddr{IP: net.IPv4zero}, tt.key) == nil).To(Equal(tt.trusted))
			}
		})
	}
}

func TestKnownHostsThatAreNoneAreRefused(t *testing.T) {
	key := strings.TrimSpace(knownLine(hostKeyNumber(t, 1).PublicKey()))
	kind, encoded, _ := strings.Cut(key, " ")
	for _, list := range []string{
		"host", "host " + kind, "host not-a-key", "host " + kind + " AAAA", "host ssh-rsa " + encoded, "host " + kind + " !" + encoded, "@revoked", "@revoked host", "@other host " + key,
		"@revoked @revoked " + key, "[host " + key, "! " + key, "git,! " + key, "[host]x " + key, "|1|x " + key, "|2|AAAAAAAAAAAAAAAAAAAAAAAAAAA=|AAAAAAAAAAAAAAAAAAAAAAAAAAA= " + key,
		"|1|AAAA|AAAAAAAAAAAAAAAAAAAAAAAAAAA= " + key, "|1|AAAAAAAAAAAAAAAAAAAAAAAAAAA=|AAAA " + key, "|1|!|! " + key, "|1|||| " + key,
		"git " + kind + " AAAAC3NzaC1lZDI1NTE5", // the key of the server is damaged
	} {
		_, err := findHost([]byte("other "+key+"\n"+list+"\n"), "git", "22")
		NewWithT(t).Expect(err).To(MatchError(errKnownHosts), list)
	}
	found, err := findHost([]byte("@revoked * "+key), "git", "22")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(found.isRevoked(hostKeyNumber(t, 1).PublicKey())).To(BeTrue())
	NewWithT(t).Expect(found.isRevoked(hostCertificate(t, hostKeyNumber(t, 2), hostKeyNumber(t, 1), "git"))).To(BeTrue())
	NewWithT(t).Expect(found.isRevoked(hostKeyNumber(t, 2).PublicKey())).To(BeFalse())
}

func TestAlgorithmsAreThoseOfTheKnownKeys(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	public, err := ssh.NewPublicKey(private.Public())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	one := knownLine(hostKeyNumber(t, 1).PublicKey())
	found, err := findHost([]byte("git"+one+"git"+one+"git"+knownLine(public)+"@cert-authority git"+knownLine(public)), "git", "22")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	keys := found.algorithms()[:4]
	NewWithT(t).Expect(keys).To(Equal([]string{ssh.KeyAlgoED25519, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}))
	NewWithT(t).Expect(found.algorithms()[4:]).To(ConsistOf(ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01,
		ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01, ssh.CertAlgoRSAv01), "an authority certifies keys of all types")
}

// With the library, 66 of the patterns took minutes, though they had three asterisks each, which was the limit.
func TestEffortForKnownHostsIsInProportionToTheirSize(t *testing.T) {
	host, key := strings.Repeat("a", maxHost), knownLine(hostKeyNumber(t, 1).PublicKey())
	hash := "|1|" + strings.Repeat("A", 27) + "=|" + strings.Repeat("A", 27) + "="
	for name, line := range map[string]string{
		"asterisks":       strings.Repeat("*a", 100) + "b" + key,
		"three asterisks": "*a*a*" + strings.Repeat("a", 30) + "b" + key,
		"long patterns":   strings.Repeat("*?", 200_000) + "b" + key,
		"many patterns":   strings.Repeat("*a*a*b,", 10_000) + key[:0] + "x" + key,
		"hashed":          hash + key,
		"revoked":         "@revoked *" + key,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			finder := &hostFinder{name: newNameMatcher(host), host: host, port: "22"}
			found, err := finder.find([]byte(strings.Repeat(line, maxKnownHosts/len(line))))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.isKnown()).To(BeFalse())
			g.Expect(finder.name.steps).To(BeNumerically("<=", maxKnownHosts))
			g.Expect(finder.hashes).To(BeNumerically("<=", maxKnownHosts/len(hash)))
		})
	}
	_, err := findHost([]byte(strings.Repeat("*"+key, maxHostKeys+1)), host, "22")
	NewWithT(t).Expect(err).To(MatchError(errManyHostKeys))
	// The keys of other hosts are not parsed, which takes 20 µs for some types.
	_, err = findHost([]byte(strings.Repeat("b"+key, maxKnownHosts/(1+len(key)))), host, "22")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// FuzzPattern compares the matcher with one that tries everything.
func FuzzPattern(f *testing.F) {
	var naive func(pattern, name string) bool
	naive = func(pattern, name string) bool {
		switch {
		case pattern == "":
			return name == ""
		case pattern[0] == '*':
			return naive(pattern[1:], name) || name != "" && naive(pattern, name[1:])
		}
		return name != "" && (pattern[0] == '?' || pattern[0] == name[0]) && naive(pattern[1:], name[1:])
	}
	long := strings.Repeat("ab", 100)
	for _, seed := range [][2]string{{"*", ""}, {"", ""}, {"a*", "a"}, {"*a", "a"}, {"**", "abc"}, {"a?c", "abc"}, {"*?*", "a"}, {"?", ""}, {"*a*b", "aabab"},
		{long, long}, {"*b", long}, {"a*", long}, {"*a?a*b", long}, {strings.Repeat("?", 200), long}, {strings.Repeat("?", 201), long}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(name) > maxHost || len(pattern) > 300 || strings.Count(pattern, "*") > 3 {
			return
		}
		m := newNameMatcher(name)
		if got, want := m.matches(pattern), naive(pattern, name); got != want {
			t.Fatalf("%q matches %q: %t", pattern, name, got)
		}
		if m.steps > len(pattern) {
			t.Fatalf("%d steps for %q", m.steps, pattern)
		}
	})
}
