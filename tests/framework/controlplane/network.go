package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Network is the network in which the servers of a control plane listen, and the way to reach them there.
type Network interface {
	// Address returns the IP address that servers bind to.
	Address() string
	// Enter returns the program and the arguments that run the given program in the network.
	Enter(path string, args []string) (string, []string)
	// Listen opens a listener in the network. The host of the address is an IP address.
	Listen(network, address string) (net.Listener, error)
	// Dial connects to an address in the network.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// loopback is the network of a control plane without nodes: the loopback interface of the machine.
type loopback struct{}

func (loopback) Address() string { return "127.0.0.1" }

func (loopback) Enter(path string, args []string) (string, []string) { return path, args }

func (loopback) Listen(network, address string) (net.Listener, error) {
	return net.Listen(network, address)
}

func (loopback) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// Dial connects to an address in the network of the servers.
func (cp *ControlPlane) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return cp.network.Dial(ctx, network, address)
}

// Listen opens a listener in the network of the servers. The host of the address is an IP address.
func (cp *ControlPlane) Listen(network, address string) (net.Listener, error) {
	return cp.network.Listen(network, address)
}

// FreeAddress returns a host:port in the network of the servers that is free at this moment.
func (cp *ControlPlane) FreeAddress() (string, error) { return cp.freeAddress() }

// freeAddress asks the kernel for a port that is free at this moment.
func (cp *ControlPlane) freeAddress() (string, error) {
	addresses, err := cp.freeAddresses(1)
	if err != nil {
		return "", err
	}
	return addresses[0], nil
}

// freeAddresses returns several distinct addresses.
func (cp *ControlPlane) freeAddresses(count int) ([]string, error) {
	addresses := make([]string, 0, count)
	listeners := make([]net.Listener, 0, count)
	defer func() {
		for _, listener := range listeners {
			_ = listener.Close()
		}
	}()
	for range count {
		listener, err := cp.Listen("tcp", net.JoinHostPort(cp.network.Address(), "0"))
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		listeners = append(listeners, listener)
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}

// AnswersOK returns a check that a GET of the URL has status 200. It does not verify the server's certificate: a certificate that a server
// generates in memory is not available anywhere, and no secret is sent.
func (cp *ControlPlane) AnswersOK(url string) func(context.Context) error {
	return cp.answersOK(url, "", &tls.Config{InsecureSkipVerify: true})
}

// answersOK works like AnswersOK, with a token and a TLS configuration.
func (cp *ControlPlane) answersOK(url, token string, config *tls.Config) func(context.Context) error {
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, DialContext: cp.Dial},
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		if err := response.Body.Close(); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", url, response.Status)
		}
		return nil
	}
}
