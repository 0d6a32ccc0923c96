package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is wrapped
	"google.golang.org/grpc/mem"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// modeVariable says how the agent misbehaves; see the methods of agent.
const modeVariable = "FAKE_MODE"

// serve answers as an agent until the context ends.
func serve(ctx context.Context, options map[string]string) error {
	pair, err := tls.LoadX509KeyPair(options["tls-cert-file"], options["tls-key-file"])
	if err != nil {
		return fmt.Errorf("read the key pair: %w", err)
	}
	listener, err := net.Listen("tcp", options["listen"])
	if err != nil {
		return err
	}
	served := newAgent(os.Getenv(modeVariable), options)
	server := served.server(
		grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}})))
	fmt.Println("SERVING", served.mode)
	context.AfterFunc(ctx, server.Stop)
	return server.Serve(listener)
}

// server is a gRPC server of the agent.
func (a *agent) server(options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options,
		grpc.MaxRecvMsgSize(proto.MaxMessageSize), grpc.MaxSendMsgSize(proto.MaxMessageSize+1<<20),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.UnaryInterceptor(a.intercept), grpc.StreamInterceptor(a.interceptStream),
	)...)
	proto.RegisterAgentServer(server, a)
	return server
}

// raw is a message that is encoded already: one that no message of the protocol encodes to within reason.
type raw []byte

// codec sends raw messages as they are.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	if encoded, ok := message.(raw); ok {
		return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
	}
	return c.CodecV2.Marshal(message)
}
