package auth

import (
	"errors"
	"strings"

	"google.golang.org/grpc/metadata"
)

// maxTokenSize is the longest token that is looked at, in bytes.
const maxTokenSize = 16 << 10

var (
	errNoToken    = errors.New("the call has no bearer token")
	errManyTokens = errors.New("the call has more than one authorization header")
	errScheme     = errors.New("the authorization header is not of the form: Bearer TOKEN")
	errTokenSize  = errors.New("the bearer token is longer than 16 KiB")
)

// bearerToken returns the token of RFC 6750 in the headers of a call.
func bearerToken(headers metadata.MD) (string, error) {
	values := headers.Get("authorization")
	switch {
	case len(values) == 0:
		return "", errNoToken
	case len(values) > 1:
		return "", errManyTokens
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case !strings.EqualFold(scheme, "bearer"):
		return "", errScheme
	case len(token) > maxTokenSize:
		return "", errTokenSize
	case token == "" || strings.ContainsFunc(token, outsideToken68):
		return "", errScheme
	}
	return token, nil
}

// outsideToken68 tells which characters no bearer token has.
func outsideToken68(r rune) bool {
	letterOrDigit := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	return !letterOrDigit && !strings.ContainsRune("-._~+/=", r)
}
