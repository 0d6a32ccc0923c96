package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"google.golang.org/grpc"

	"github.com/stack-controller/stack-controller/internal/agent/auth"
)

// access has the flags that determine who may call the agent.
type access struct {
	certificateFile, keyFile string
	authorizer               auth.Options
}

func (a *access) bind(flags *flag.FlagSet) {
	flags.StringVar(&a.certificateFile, "tls-cert-file", "", "Certificate of the agent, PEM; read again when it changes.")
	flags.StringVar(&a.keyFile, "tls-key-file", "", "Key of the certificate, PEM.")
	flags.StringVar(&a.authorizer.Namespace, "workspace-namespace", "", "Namespace of the Workspace that callers have to be allowed to use.")
	flags.StringVar(&a.authorizer.Name, "workspace-name", "", "Name of that Workspace.")
	flags.StringVar(&a.authorizer.Audience, "token-audience", "", "Audience that the tokens of callers have to be for.")
	flags.StringVar(&a.authorizer.Controller, "controller", "",
		"User name of the controller, system:serviceaccount:NAMESPACE:NAME; only it is accepted where the agent may not ask the API server.")
	flags.StringVar(&a.authorizer.TokenFile, "api-token-file", "", "The agent's own token for the API server; read again for each request.")
	flags.StringVar(&a.authorizer.CAFile, "api-ca-file", "", "Certificate authority of the API server, PEM; read again for each request.")
}

// wanted reports whether any of the flags is set.
func (a *access) wanted() bool {
	return len(a.missing()) < len(a.values())
}

// values returns the flags with their values.
func (a *access) values() [][2]string {
	return [][2]string{
		{"--tls-cert-file", a.certificateFile}, {"--tls-key-file", a.keyFile},
		{"--workspace-namespace", a.authorizer.Namespace}, {"--workspace-name", a.authorizer.Name},
		{"--token-audience", a.authorizer.Audience}, {"--controller", a.authorizer.Controller},
		{"--api-token-file", a.authorizer.TokenFile}, {"--api-ca-file", a.authorizer.CAFile},
	}
}

func (a *access) missing() []string {
	var names []string
	for _, value := range a.values() {
		if value[1] == "" {
			names = append(names, value[0])
		}
	}
	return names
}

// validate returns an error if other machines can reach the address and not every call to it is encrypted and authorised.
func (a *access) validate(address string) error {
	private, err := isPrivate(address)
	if err != nil {
		return err
	}
	missing := a.missing()
	switch {
	case private && !a.wanted():
		return nil
	case len(missing) > 0 && !private:
		return fmt.Errorf("--listen=%s can be reached from other machines, so calls have to be authenticated: %s missing", address, strings.Join(missing, ", "))
	case len(missing) > 0:
		return fmt.Errorf("calls cannot be authenticated: %s missing", strings.Join(missing, ", "))
	}
	account, ok := strings.CutPrefix(a.authorizer.Controller, "system:serviceaccount:")
	namespace, name, _ := strings.Cut(account, ":")
	if !ok || namespace == "" || name == "" || strings.Contains(name, ":") {
		return errors.New("--controller is not of the form system:serviceaccount:NAMESPACE:NAME")
	}
	return nil
}

// isPrivate reports whether only processes of this machine can reach the address.
func isPrivate(address string) (bool, error) {
	if strings.HasPrefix(address, "unix:") {
		return true, nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, fmt.Errorf("--listen=%s is neither unix:/path nor host:port: %w", address, err)
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback(), nil
}

// options returns the options with which the gRPC server encrypts and authorises every call, if the command line asks for it.
func (a *access) options(log *slog.Logger) ([]grpc.ServerOption, error) {
	if !a.wanted() {
		return nil, nil
	}
	tls, err := auth.ServerTLS(a.certificateFile, a.keyFile, log)
	if err != nil {
		return nil, err
	}
	options := a.authorizer
	options.Log = log
	authorizer, err := auth.New(options)
	if err != nil {
		return nil, err
	}
	return append(authorizer.ServerOptions(), grpc.Creds(tls)), nil
}
