package credentials

import (
	"bytes"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
)

// certificateBlock is the PEM type of a certificate.
const certificateBlock = "CERTIFICATE"

// errOtherCertificate says that whoever answered is not the agent that was meant.
var errOtherCertificate = errors.New("the server's certificate is not the one that the workspace's agent was given")

// Pinned returns the client's side of a TLS 1.3 connection to the agent that has the private key of this certificate, PEM
// encoded, and to nobody else. Names, validity and authorities do not matter. The error is about PEM data that is not
// exactly one certificate.
func Pinned(certificatePEM []byte) (credentials.TransportCredentials, error) {
	pinned, err := parseCertificate(certificatePEM)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of an agent: %w", err)
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		// Switches off the search for an authority only. The handshake still proves that the server has the key.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares the certificate itself
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || subtle.ConstantTimeCompare(state.PeerCertificates[0].Raw, pinned) != 1 {
				return errOtherCertificate
			}
			return nil
		},
	}), nil
}

// parseCertificate returns the DER encoding of the one certificate in the PEM data.
func parseCertificate(data []byte) ([]byte, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != certificateBlock {
		return nil, errors.New("the data has no PEM block of type CERTIFICATE")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the data has more than one certificate")
	}
	if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return nil, err
	}
	return block.Bytes, nil
}
