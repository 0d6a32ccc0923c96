// Command stubagent stands in for the agent in tests that check how the process of an agent is handled. It answers GetInfo, and its flags
// control what else it does.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// agent answers GetInfo.
type agent struct {
	agentpb.UnimplementedAgentServer
	info *agentpb.Info
}

func (a *agent) GetInfo(context.Context, *agentpb.GetInfoRequest) (*agentpb.Info, error) {
	return a.info, nil
}

func main() {
	flags := flag.NewFlagSet("stub", flag.ExitOnError)
	listen := flags.String("listen", "", "as the agent has it")
	for _, name := range []string{"dir", "workspace", "pulumi", "idle-timeout"} {
		flags.String(name, "", "as the agent has it, ignored")
	}
	fail := flags.String("fail", "", "print this text and exit with status 3")
	mute := flags.Bool("mute", false, "never listen")
	stubborn := flags.Bool("stubborn", false, "do not end on SIGTERM")
	operation := flags.Bool("operation", false, "pretend that an operation runs")
	child := flags.Bool("child", false, "start a process that outlives this one")
	_ = flags.Parse(os.Args[2:])

	if *fail != "" {
		fmt.Fprintln(os.Stderr, *fail)
		os.Exit(3)
	}
	if *child {
		cmd := exec.Command("sleep", "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			panic(err)
		}
	}
	if *mute {
		time.Sleep(10 * time.Minute)
	}
	if *stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	serve(strings.TrimPrefix(*listen, "unix:"), *operation)
}

func serve(socket string, operation bool) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	info := &agentpb.Info{AgentVersion: "stub", PulumiVersion: "v3.0.0"}
	if operation {
		info.Operations = []*agentpb.Operation{{Id: "1", State: agentpb.OperationState_OPERATION_STATE_RUNNING}}
	}
	server := grpc.NewServer()
	agentpb.RegisterAgentServer(server, &agent{info: info})
	if !signal.Ignored(syscall.SIGTERM) {
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		go func() {
			<-terminated
			server.Stop()
		}()
	}
	if err := server.Serve(listener); err != nil {
		panic(err)
	}
}
