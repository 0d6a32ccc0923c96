package git_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// hugeKey returns a key in the PEM format that can be parsed. Its numbers have the right sizes, but are not necessarily primes.
func hugeKey(t *testing.T, bits int) []byte {
	t.Helper()
	g := NewWithT(t)
	one, exponent := big.NewInt(1), big.NewInt(65537)
	factor := func() *big.Int {
		for {
			number, err := rand.Int(rand.Reader, new(big.Int).Lsh(one, uint(bits/2)))
			g.Expect(err).NotTo(HaveOccurred())
			for _, bit := range []int{bits/2 - 1, bits/2 - 2, 0} {
				number.SetBit(number, bit, 1)
			}
			if new(big.Int).GCD(nil, nil, exponent, new(big.Int).Sub(number, one)).Cmp(one) == 0 {
				return number
			}
		}
	}
	for {
		p, q := factor(), factor()
		p1, q1 := new(big.Int).Sub(p, one), new(big.Int).Sub(q, one)
		d, inverse := new(big.Int).ModInverse(exponent, new(big.Int).Mul(p1, q1)), new(big.Int).ModInverse(q, p)
		if d == nil || inverse == nil {
			continue
		}
		der, err := asn1.Marshal(struct {
			Version               int
			N                     *big.Int
			E                     int
			D, P, Q, Dp, Dq, Qinv *big.Int
		}{0, new(big.Int).Mul(p, q), 65537, d, p, q, new(big.Int).Mod(d, p1), new(big.Int).Mod(d, q1), inverse})
		g.Expect(err).NotTo(HaveOccurred())
		return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: der})
	}
}

// certificateFor is a certificate of a public key in the PEM format.
func certificateFor(t *testing.T, public any) []byte {
	t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, signer)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// withRounds returns a private key for ssh that names another number of rounds than it was encrypted with.
func withRounds(t *testing.T, rounds uint32) []byte {
	t.Helper()
	g := NewWithT(t)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	block, err := ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte("passphrase"))
	g.Expect(err).NotTo(HaveOccurred())
	// The options are a salt of 16 bytes, and the number.
	_, after, found := bytes.Cut(block.Bytes, []byte("\x00\x00\x00\x06bcrypt\x00\x00\x00\x18\x00\x00\x00\x10"))
	g.Expect(found).To(BeTrue())
	binary.BigEndian.PutUint32(after[16:], rounds)
	return pem.EncodeToMemory(block)
}

// Arithmetic with a key cannot be interrupted: with the largest key that a Secret has room for, it takes days.
func TestKeysThatWouldTakeHoursAreRefused(t *testing.T) {
	const bits, size = "more than 8192 bits", "more than 16384 bytes"
	large, huge := hugeKey(t, 9000), hugeKey(t, 100_000)
	block, _ := pem.Decode(large)
	private, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	small := ed25519.PublicKey(make([]byte, ed25519.PublicKeySize))
	const ed25519Key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	port := untouched(t)
	https, ssh := "https://127.0.0.1:"+port+"/repo", "ssh://git@127.0.0.1:"+port+"/repo"
	app := func(key []byte) git.Auth {
		return git.Auth{GitHubApp: &git.GitHubApp{AppID: "123", InstallationID: "456", PrivateKey: key}}
	}
	for name, tt := range map[string]struct {
		remote git.Remote
		says   string
	}{
		"large key of a GitHub App": {git.Remote{URL: https, Auth: app(large)}, bits},
		"huge key of a GitHub App":  {git.Remote{URL: https, Auth: app(huge)}, size},
		"large key for ssh":         {git.Remote{URL: ssh, Auth: git.Auth{PrivateKey: large}}, bits},
		"huge key for ssh":          {git.Remote{URL: ssh, Auth: git.Auth{PrivateKey: huge}}, size},
		"large key of a client":     {git.Remote{URL: https, ClientCert: certificateFor(t, &private.PublicKey), ClientKey: large}, bits},
		"huge key of a client":      {git.Remote{URL: https, ClientCert: certificateFor(t, &private.PublicKey), ClientKey: huge}, size},
		"large key of a CA": {git.Remote{URL: https, CA: certificateFor(t, &rsa.PublicKey{
			N: new(big.Int).SetBit(big.NewInt(1), 17_000, 1), E: 65537})}, "more than 16384 bits"},
		"key for ssh whose passphrase is hashed very often": {git.Remote{URL: ssh, Auth: git.Auth{
			PrivateKey: withRounds(t, 201), Passphrase: []byte("passphrase")}}, "more than 200 rounds"},
		"known hosts with many keys of the server": {git.Remote{URL: ssh, Auth: git.Auth{Password: "password"},
			KnownHosts: bytes.Repeat([]byte("* "+ed25519Key+"\n"), 101)}, "more than 100 keys"},
		"known hosts of more than a mebibyte": {git.Remote{URL: ssh, Auth: git.Auth{Password: "password"},
			KnownHosts: make([]byte, 1<<20+1)}, "more than 1048576 bytes"},
		"CA of many certificates": {git.Remote{URL: https, CA: bytes.Repeat(certificateFor(t, small), 501)}, "more than 500 certificates"},
		"CA of many certificates with large keys": {git.Remote{URL: https, CA: bytes.Repeat(certificateFor(t, &rsa.PublicKey{
			N: new(big.Int).SetBit(big.NewInt(1), 4096, 1), E: 65537}), 6)}, "more than 5 certificates whose keys have more than 4096 bits"},
		"long client certificate": {git.Remote{URL: https, ClientCert: bytes.Repeat(certificateFor(t, small), 200), ClientKey: large}, "more than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			client := newClient(t, git.Options{})
			message := resolveFails(t, client, tt.remote, "main", git.InvalidCredentials).Message
			g.Expect(message).To(ContainSubstring(tt.says))
			g.Expect(message).NotTo(ContainSubstring(strings.TrimSpace(strings.Split(string(large), "\n")[1])))
		})
	}
}
