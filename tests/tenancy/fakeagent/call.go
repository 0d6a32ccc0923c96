package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// callTime bounds a call to somebody else's agent.
const callTime = 20 * time.Second

// targetVariable is the address of somebody else's agent.
const targetVariable = "FAKE_TARGET"

// callAgent calls the agent at the address with the token in the file, if there is one, and prints what comes of it.
func callAgent(ctx context.Context, args []string) error {
	if len(args) < 1 {
		return errors.New("usage: fakeagent call ADDRESS [TOKEN-FILE]")
	}
	token := ""
	if len(args) > 1 {
		content, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		token = string(content)
	}
	fmt.Println("RESULT agent", ask(ctx, args[0], token))
	fmt.Println("RESULT end")
	return nil
}

// ask returns the code that the agent answers a GetInfo with.
func ask(ctx context.Context, address, token string) string {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	connection, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		// Whoever attacks does not care who answers.
		InsecureSkipVerify: true,
		NextProtos:         []string{"h2"},
	})))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = connection.Close() }()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	_, err = proto.NewAgentClient(connection).GetInfo(ctx, &proto.GetInfoRequest{}, grpc.WaitForReady(true))
	return status.Code(err).String()
}

// steal tries the token of the controller at the API server and at somebody else's agent.
func (a *agent) steal(token string) {
	ctx := context.Background()
	fmt.Println("RESULT token", len(token) > 0)
	fmt.Println("RESULT secrets", a.get(ctx, token, "/api/v1/secrets?limit=1"))
	fmt.Println("RESULT reviews", a.get(ctx, token, "/apis/auto.pulumi.com/v1alpha1/workspaces?limit=1"))
	fmt.Println("RESULT agent", ask(ctx, os.Getenv(targetVariable), token))
	fmt.Println("RESULT end")
}

// get returns the status of a request to the API server with the token.
func (a *agent) get(ctx context.Context, token, path string) string {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	authorities := x509.NewCertPool()
	certificate, err := os.ReadFile(a.options["api-ca-file"])
	if err != nil {
		return err.Error()
	}
	authorities.AppendCertsFromPEM(certificate)
	server := "https://" + os.Getenv("KUBERNETES_SERVICE_HOST") + ":" + os.Getenv("KUBERNETES_SERVICE_PORT")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+path, nil)
	if err != nil {
		return err.Error()
	}
	request.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}}}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	_ = response.Body.Close()
	return response.Status
}
