package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
)

const (
	bareStack = "bare"
	// bareHome is a directory of the image that its user can write.
	bareHome = "/home/pulumi"
	// sharedPrefix begins the names of the stacks that are updated at the same time.
	sharedPrefix = "bare-"
)

// bareProgram makes the file on standard input the file FILE of the program that pulumi runs.
const bareProgram = `set -e
mkdir -p ` + bareHome + `/program
cd ` + bareHome + `/program
cat >"$FILE"
`

// bareInit creates the named stacks.
const bareInit = bareProgram + `for stack; do pulumi stack select --create --non-interactive "$stack"; done`

// bareUp updates the named stacks, all at once. It takes the time inside the container, so that the time to enter the container does not
// count. It prints the uptime of the machine before and after the updates, and the output of "times": the processor time of the shell,
// which is close to zero, and that of its children. A shell ignores interrupts in what it runs in the background, and old language hosts
// then end 5 s late, so one update alone is in the foreground.
const bareUp = bareProgram + `up() {
	pulumi up --yes --skip-preview --non-interactive --stack "$1" >"/tmp/$1" 2>&1 || { cat "/tmp/$1" >&2; kill $$; }
}
read start _ </proc/uptime
if [ $# = 1 ]; then
	up "$1"
else
	for stack; do up "$stack" & done
	wait
fi
read end _ </proc/uptime
echo "$start $end"
times`

// barePod is a pod with the image and the resources of a workspace, in which the benchmark runs pulumi directly.
type barePod struct {
	system *podsystem.System
	pod    *corev1.Pod
	stacks []string // stacks that are updated at the same time
	file   string   // the file of the program that changes
}

// bareUpdate holds the duration and the processor time of "pulumi up".
type bareUpdate struct{ wall, cpu time.Duration }

// bareSpec returns a pod that does nothing, with the image, the resources and the privileges of a workspace pod.
func bareSpec(system *podsystem.System, namespace, name string) *corev1.Pod {
	restricted := &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	template := system.WorkspaceSpec().PodTemplate.Spec
	return &corev1.Pod{
		Namespace: namespace, Name: name,
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			AutomountServiceAccountToken:  new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: ptr.To[int64](1000), RunAsGroup: ptr.To[int64](1000), FSGroup: ptr.To[int64](1000),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Volumes: template.Volumes,
			Containers: []corev1.Container{{
				Name:            "pulumi",
				Image:           system.Images.Pulumi.Reference,
				ImagePullPolicy: corev1.PullIfNotPresent,
				Command:         []string{"sleep", "1000000"},
				Env: []corev1.EnvVar{
					{Name: "PULUMI_BACKEND_URL", Value: system.BackendURL},
					{Name: "PULUMI_CONFIG_PASSPHRASE", Value: "correct horse battery staple"},
					{Name: "PULUMI_SKIP_UPDATE_CHECK", Value: "true"},
				},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
				}},
				VolumeMounts:    template.Containers[0].VolumeMounts,
				SecurityContext: restricted,
			}},
		},
	}
}

// startBarePod creates the pod, waits until it is ready, and creates stacks in it: one, and as many more as are updated at once.
func startBarePod(ctx context.Context, system *podsystem.System, namespace string, many int, files gitserver.Files) (*barePod, error) {
	b := &barePod{system: system, pod: bareSpec(system, namespace, "bare"), file: "Pulumi.yaml"}
	for i := range many {
		b.stacks = append(b.stacks, fmt.Sprintf("%s%d", sharedPrefix, i))
	}
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	_, err := b.shell(ctx, bareInit, files, append(b.stacks, bareStack)...)
	return b, err
}

// start creates the pod and waits until it is ready.
func (b *barePod) start(ctx context.Context) error {
	env := &b.pod.Spec.Containers[0].Env
	*env = append(*env, corev1.EnvVar{Name: "FILE", Value: b.file})
	if err := b.system.Client.Create(ctx, b.pod); err != nil {
		return fmt.Errorf("create the bare pod: %w", err)
	}
	_, err := b.system.Cluster.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=120s", "--namespace="+b.pod.Namespace, "pod/"+b.pod.Name)
	return err
}

// up runs "pulumi up" of the files.
func (b *barePod) up(ctx context.Context, files gitserver.Files) (bareUpdate, error) {
	return b.upAll(ctx, files, bareStack)
}

// took returns the duration of "pulumi up" of the files.
func (b *barePod) took(ctx context.Context, files gitserver.Files) (time.Duration, error) {
	update, err := b.up(ctx, files)
	return update.wall, err
}

// upMany runs "pulumi up" of the files for many stacks at once.
func (b *barePod) upMany(ctx context.Context, files gitserver.Files) (bareUpdate, error) {
	return b.upAll(ctx, files, b.stacks...)
}

func (b *barePod) upAll(ctx context.Context, files gitserver.Files, stacks ...string) (bareUpdate, error) {
	output, err := b.shell(ctx, bareUp, files, stacks...)
	if err != nil {
		return bareUpdate{}, err
	}
	return parseBare(output)
}

// shell runs a script in the pod. The file of the program that changes is the script's standard input.
func (b *barePod) shell(ctx context.Context, script string, files gitserver.Files, args ...string) (string, error) {
	return b.run(ctx, script, files[b.file], args...)
}

// run runs a script in the pod with a standard input.
func (b *barePod) run(ctx context.Context, script, input string, args ...string) (string, error) {
	command := []string{"exec", "--stdin", "--namespace=" + b.pod.Namespace, b.pod.Name, "--", "sh", "-c", script, "sh"}
	return b.system.Cluster.KubectlInput(ctx, input, append(command, args...)...)
}

// parseBare parses the output of bareUp.
func parseBare(output string) (bareUpdate, error) {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if len(lines) != 3 {
		return bareUpdate{}, fmt.Errorf("read the times of the bare update: there are %d lines in %q", len(lines), output)
	}
	started, ended, _ := strings.Cut(lines[0], " ")
	start, startErr := uptime(started)
	end, endErr := uptime(ended)
	user, system, _ := strings.Cut(lines[2], " ")
	userTime, userErr := time.ParseDuration(user)
	systemTime, systemErr := time.ParseDuration(system)
	if err := errors.Join(startErr, endErr, userErr, systemErr); err != nil {
		return bareUpdate{}, fmt.Errorf("read the times of the bare update: %w", err)
	}
	return bareUpdate{wall: end - start, cpu: userTime + systemTime}, nil
}

// wrapperScript logs when each call of the CLI started and ended, in hundredths of a second since the machine started. It takes a few
// milliseconds per call, which count as time of stack-controller.
const wrapperScript = `#!/bin/sh
read start _ </proc/uptime
%q "$@"
code=$?
read end _ </proc/uptime
echo "$start $end $*" >>%q
exit $code
`

// wrapper returns a script that runs instead of the CLI. log is the path to which the script writes.
func wrapper(cli, log string) string { return fmt.Sprintf(wrapperScript, cli, log) }

// callLog reads the calls of a wrapped CLI from its log.
type callLog struct{ path string }

// call is one run of the CLI.
type call struct {
	start, end time.Time
	command    string // arguments up to the first flag after the command; flags before the command are left out
}

// wrap writes a wrapper of the CLI into a directory, and returns the path of the wrapper and its log.
func wrap(dir, cli string) (path string, log *callLog, err error) {
	path, log = filepath.Join(dir, "pulumi"), &callLog{path: filepath.Join(dir, "calls")}
	if err := os.WriteFile(path, []byte(wrapper(cli, log.path)), 0o700); err != nil {
		return "", nil, fmt.Errorf("write the wrapper of the CLI: %w", err)
	}
	return path, log, nil
}

// reset removes the logged calls.
func (c *callLog) reset() error {
	if err := os.Remove(c.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reset the log of calls: %w", err)
	}
	return nil
}

// read returns the calls since the last reset in the order in which they ended.
func (c *callLog) read() ([]call, error) {
	content, err := os.ReadFile(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of calls: %w", err)
	}
	started, err := machineStart()
	if err != nil {
		return nil, err
	}
	var calls []call
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return nil, fmt.Errorf("read the log of calls: %q is not a call", line)
		}
		start, startErr := uptime(fields[0])
		end, endErr := uptime(fields[1])
		if err := errors.Join(startErr, endErr); err != nil {
			return nil, fmt.Errorf("read the log of calls: %w", err)
		}
		calls = append(calls, call{start: started.Add(start), end: started.Add(end), command: commandOf(fields[2:])})
	}
	return calls, nil
}

// commandOf returns the command in the arguments: the words before the first flag, without leading flags.
func commandOf(args []string) string {
	isFlag := func(arg string) bool { return strings.HasPrefix(arg, "-") }
	words := args[len(args):]
	if first := slices.IndexFunc(args, func(arg string) bool { return !isFlag(arg) }); first >= 0 {
		words = args[first:]
	}
	if flag := slices.IndexFunc(words, isFlag); flag >= 0 {
		words = words[:flag]
	}
	return strings.Join(words, " ")
}

// machineStart returns when the machine started, with a precision of a hundredth of a second.
func machineStart() (time.Time, error) {
	content, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, fmt.Errorf("read when the machine started: %w", err)
	}
	now := time.Now()
	up, err := uptime(strings.Fields(string(content))[0])
	return now.Add(-up), err
}

// uptime parses a number of seconds in the format of the kernel.
func uptime(text string) (time.Duration, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("read a time since the machine started: %w", err)
	}
	return time.Duration(value * float64(time.Second)), nil
}
