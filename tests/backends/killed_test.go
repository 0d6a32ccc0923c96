package backends_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/objectstore"
	"github.com/stack-controller/stack-controller/tests/postgres"
	"github.com/stack-controller/stack-controller/tests/provider/install"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// sleeping is program with resources that note what is done to them, and take so many seconds each.
func sleeping(name, value, journal string, seconds ...int) gitserver.Files {
	files := program(name, value)
	text := files["Pulumi.yaml"] + "resources:\n"
	for i, seconds := range seconds {
		text += fmt.Sprintf("  slow%d:\n    type: test:index:Sleep\n    properties: {journal: %q, seconds: %d}\n    options: {version: 0.1.0}\n",
			i, journal, seconds)
	}
	files["Pulumi.yaml"] = text
	return files
}

// workspaceDir is where the process runtime keeps the app's workspace.
func workspaceDir(app *stage.App) string {
	sum := sha256.Sum256([]byte(app.Key().String()))
	return filepath.Join(system.Dir, "data", "workspaces", hex.EncodeToString(sum[:])[:12])
}

// killUp ends the pulumi process of the app's update, as the kernel does when memory runs out.
func killUp(t *testing.T, dir string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	succeed(t, err)
	for _, path := range paths {
		content, _ := os.ReadFile(path)
		arguments := strings.Split(string(content), "\x00")
		if !strings.Contains(string(content), "--config-file="+dir) || filepath.Base(arguments[0]) != "pulumi" {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		succeed(t, err)
		succeed(t, syscall.Kill(pid, syscall.SIGKILL))
		return
	}
	t.Fatal("pulumi does not run")
}

// mend runs a pulumi command on the app's stack as a person does, from elsewhere.
func mend(t *testing.T, app *stage.App, backend string, env variables, home string, arguments ...string) {
	t.Helper()
	pulumi, err := tools.Path(t.Context(), "pulumi", nil)
	succeed(t, err)
	dir := t.TempDir()
	succeed(t, os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte(program(app.Name, "0")["Pulumi.yaml"]), 0o600))
	cmd := exec.CommandContext(within(t), pulumi, append(arguments, "--stack", "dev", "--non-interactive")...)
	cmd.Dir = dir
	cmd.Env = []string{
		"HOME=" + dir, "USER=test", "PATH=" + os.Getenv("PATH"), "PULUMI_HOME=" + home, "PULUMI_BACKEND_URL=" + backend,
		"PULUMI_SKIP_UPDATE_CHECK=true", "PULUMI_CONFIG_PASSPHRASE=correct horse battery staple",
	}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	output, err := cmd.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(output))
}

// killed shows what becomes of a stack whose pulumi is killed: in the middle of an update of a resource, it heals by itself; in the middle of
// a creation, it says how it is mended, and that works at once.
func (b backend) killed(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	journal := filepath.Join(t.TempDir(), "journal")
	noted := func() string {
		content, _ := os.ReadFile(journal)
		return string(content)
	}
	push := func(app *stage.App, value string, seconds ...int) {
		_, err := app.Repository.Commit(sleeping(name, value, journal, seconds...))
		succeed(t, err)
		succeed(t, system.Fetch(t.Context(), app))
	}
	app := deploy(t, name, b.url, b.env)
	await(t, app, showing("1"))
	dir := workspaceDir(app)
	homes, err := filepath.Glob(filepath.Join(dir, "state", "home", ".pulumi"))
	succeed(t, err)
	g.Expect(homes).To(HaveLen(1))
	succeed(t, install.Install(t.Context(), homes[0]))
	push(app, "2", 0)
	await(t, app, showing("2"))
	g.Expect(noted()).To(Equal("create start\ncreate end\n"))

	push(app, "3", 8)
	g.Eventually(noted).WithTimeout(patience).Should(HaveSuffix("update start\n"))
	killUp(t, dir)
	stack := await(t, app, showing("3"))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	g.Expect(noted()).To(HavePrefix("create start\ncreate end\nupdate start\n"))
	g.Expect(noted()).To(HaveSuffix("update start\nupdate end\n"))
	g.Expect(strings.Count(noted(), "create start")).To(Equal(1))

	push(app, "4", 8, 1000)
	g.Eventually(noted).WithTimeout(patience).Should(HaveSuffix("create start\n"))
	killUp(t, dir)
	await(t, app, failing("could create it twice"))
	push(app, "5", 8, 0)
	mend(t, app, b.url, b.env, homes[0], "refresh", "--yes", "--skip-preview", "--clear-pending-creates")
	await(t, app, showing("5"))
	g.Expect(strings.Count(noted(), "create start")).To(Equal(3), noted())
	g.Expect(resources(t, app, b.url, b.env)).To(Equal(4), "the stack, its provider and two resources")
}

func TestKilledUpdateHealsWithItsLock(t *testing.T) {
	for _, name := range []string{"file", "s3", "postgres"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := backend{url: system.BackendURL}
			switch name {
			case "s3":
				succeed(t, store.CreateBucket(t.Context(), "killed"))
				b.url = "s3://killed?endpoint=http://" + store.Address + "&disableSSL=true&s3ForcePathStyle=true"
				b.env = variables{"AWS_ACCESS_KEY_ID": objectstore.AccessKey, "AWS_SECRET_ACCESS_KEY": store.SecretKey, "AWS_REGION": objectstore.Region}
			case "postgres":
				needDatabase(t)
				b.url = "postgres://" + postgres.User + "@" + database.Address + "/" + postgres.Database + "?sslmode=disable&table=killed"
				b.env = variables{"PGPASSWORD": database.Password}
			}
			b.killed(t, "killed-"+name)
		})
	}
}
