package git

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/stack-controller/stack-controller/internal/source/netguard"
)

// proxyError is the status with which a proxy refuses to connect to a host.
type proxyError int

func (e proxyError) Error() string { return fmt.Sprintf("the proxy answers with status %d", int(e)) }

// explainConnection returns the kind of an error of a connection, and what a user may read about it. A tenant chooses the host, and may
// redirect from there, so the error may be about a server that only the controller can reach. Its text may have names from a certificate,
// the address of a resolver, or words of the server or a proxy. So the result is one of the texts in this file, or one of the system.
func explainConnection(err error) (kind Kind, text string) {
	var (
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		operation   *net.OpError
		resolving   *net.DNSError
		proxy       proxyError
		errno       syscall.Errno
		timeout     net.Error
	)
	switch {
	case errors.Is(err, netguard.ErrRefused):
		return AddressRefused, netguard.ErrRefused.Error()
	case errors.As(err, &certificate):
		return CertificateInvalid, "the server's certificate is not trusted: " + explainCertificate(certificate.Err)
	case errors.As(err, &operation) && operation.Op == "remote error": // an alert of TLS
		return CertificateInvalid, "the server does not accept the TLS connection; it may want a client certificate"
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return Unreachable, "the server does not speak TLS at this port"
	case errors.As(err, &proxy) && proxy == http.StatusProxyAuthRequired:
		return AuthenticationFailed, "the proxy does not accept the credentials (status 407)"
	case errors.As(err, &proxy):
		return Unreachable, proxy.Error()
	case errors.As(err, &resolving) && resolving.IsNotFound:
		return Unreachable, "no such host"
	case errors.As(err, &timeout) && timeout.Timeout():
		return Timeout, "no answer in time"
	case errors.As(err, &resolving):
		return Unreachable, "the name of the host cannot be resolved"
	case errors.As(err, &errno):
		return Unreachable, errno.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Unreachable, "the server ends the connection too early"
	case strings.HasPrefix(innermost(err), "tls: "):
		return Unreachable, "the TLS handshake fails"
	}
	return Unreachable, "the server does not speak the protocol as it should, or the connection fails"
}

// explainCertificate says what is wrong with a certificate, with nothing of the certificate.
func explainCertificate(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return "no trusted authority has issued it"
	case errors.As(err, &name):
		return "it is for another name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "it has expired, or is not valid yet"
	}
	return "it is not valid"
}

// innermost returns the text of the innermost error: url.Error and other errors around it quote addresses.
func innermost(err error) string {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err.Error()
}
