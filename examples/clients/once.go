package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

var sidecar = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
	DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", "/run/fastdedup/fastdedup.sock")
	}}}

type answer struct {
	Outcome, Owner, Title string
	Fence                 int64
	Status                int
	Result                json.RawMessage
}

func ask(verb string, body map[string]any) (said answer, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return said, err
	}
	got, err := sidecar.Post("http://fastdedup/v1/claims"+verb, "application/json", bytes.NewReader(text))
	if err != nil {
		return said, err
	}
	defer got.Body.Close()
	if err = json.NewDecoder(got.Body).Decode(&said); err == nil && got.StatusCode >= 300 {
		err = fmt.Errorf("%d: %s", got.StatusCode, said.Title)
	}
	return said, err
}

func once(key string, work func(fence int64) (any, error)) (json.RawMessage, error) {
	claim, err := ask("", map[string]any{"key": key, "wait": 5000})
	if err != nil || claim.Outcome == "succeeded" {
		return claim.Result, err
	} else if claim.Outcome != "acquired" {
		return nil, fmt.Errorf("not run: %s", claim.Outcome)
	}
	mine := map[string]any{"key": key, "owner": claim.Owner, "fence": claim.Fence}
	failed := true // also if the work panics
	defer func() {
		if failed {
			ask("/release", mine)
		}
	}()
	done, err := work(claim.Fence)
	if err != nil {
		return nil, err
	}
	failed = false
	var said answer
	result, err := json.Marshal(done)
	if err == nil {
		mine["result"] = json.RawMessage(result)
		said, err = ask("/complete", mine)
		for tries := 1; err != nil && tries < 3 && (said.Status/100 != 4 || said.Status == 408 || said.Status == 429); tries++ {
			time.Sleep(time.Second)
			said, err = ask("/complete", mine)
		}
	}
	if err != nil { // the work is done: it must not run again
		delete(mine, "result")
		mine["error"], mine["ttl"] = "its result was not stored", 86400000
		ask("/fail", mine)
	}
	return result, err
}
